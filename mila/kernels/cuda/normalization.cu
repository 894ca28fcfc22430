// Layer norm and RMS norm over rows of `columns` elements: one block for a row at a time, because a row is read two or
// three times and then still lies in the cache. Each thread works on the same columns of every row.

// y = (x - mean) rstd (weight + unit_offset) + bias; RMS norm is not CENTRED: its mean counts as 0.
template <int WIDTH, bool CENTRED>
__device__ __forceinline__ void norm_forward(
    stored_t* output, float* means, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias,
    index_t rows, index_t columns, float epsilon, float unit_offset) {
  const index_t first = threadIdx.x * WIDTH, step = blockDim.x * WIDTH;
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const stored_t* source = x + row * columns;
    float values[WIDTH], factors[WIDTH], offsets[WIDTH], mean = 0.0f, squares = 0.0f;
    if constexpr (CENTRED) {
      float sum = 0.0f;
      for (index_t i = first; i < columns; i += step) {
        load_some<WIDTH>(values, source + i);
        for (int k = 0; k < WIDTH; k++) sum += values[k];
      }
      mean = block_sum(sum) / columns;
    }
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(values, source + i);
      for (int k = 0; k < WIDTH; k++) squares += (values[k] - mean) * (values[k] - mean);
    }
    const float rstd = 1.0f / sqrtf(block_sum(squares) / columns + epsilon);
    if (threadIdx.x == 0) {
      if (means != nullptr) means[row] = mean;
      if (rstds != nullptr) rstds[row] = rstd;
    }
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(values, source + i);
      if (weight != nullptr) load_some<WIDTH>(factors, weight + i);
      if (bias != nullptr) load_some<WIDTH>(offsets, bias + i);
      for (int k = 0; k < WIDTH; k++) {
        values[k] = (values[k] - mean) * rstd;
        if (weight != nullptr) values[k] *= factors[k] + unit_offset;
        if (bias != nullptr) values[k] += offsets[k];
      }
      store_some<WIDTH>(output + row * columns + i, values);
    }
  }
}

template <bool CENTRED>
__device__ __forceinline__ void choose_norm_forward(
    stored_t* output, float* means, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias,
    index_t rows, index_t columns, float epsilon, float unit_offset) {
  if (columns % VECTOR == 0 && is_aligned(output) && is_aligned(x) && is_aligned(weight) && is_aligned(bias))
    norm_forward<VECTOR, CENTRED>(output, means, rstds, x, weight, bias, rows, columns, epsilon, unit_offset);
  else
    norm_forward<1, CENTRED>(output, means, rstds, x, weight, bias, rows, columns, epsilon, unit_offset);
}

// output, x (rows, columns); means, rstds (rows,) or null; weight, bias (columns,) or null. A block for each row.
extern "C" __global__ void __launch_bounds__(512, 2) layer_norm_forward(
    stored_t* output, float* means, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias,
    index_t rows, index_t columns, float epsilon) {
  choose_norm_forward<true>(output, means, rstds, x, weight, bias, rows, columns, epsilon, 0.0f);
}

// As above, without means.
extern "C" __global__ void __launch_bounds__(512, 2) rms_norm_forward(
    stored_t* output, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias, index_t rows,
    index_t columns, float epsilon, float unit_offset) {
  choose_norm_forward<false>(output, nullptr, rstds, x, weight, bias, rows, columns, epsilon, unit_offset);
}

// Where a block adds up the gradients of its columns. A thread touches its own columns alone, so nothing is guarded.
// In shared memory the elements of a vector lie apart, so that the threads of a warp meet different banks.
struct ColumnSums {
  float* sums;
  index_t vector_step, element_step;

  template <int WIDTH>
  __device__ __forceinline__ float* at(index_t column, int element) const {
    return sums + column / WIDTH * vector_step + element * element_step;
  }
};

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy (weight + unit_offset) and xhat = (x - mean) rstd; not CENTRED,
// mean and mean(g) are 0. Block c works on rows_per_chunk rows and leaves the sums over them of dy xhat and of dy in
// row c of weight_partial and bias_partial, where these are not null.
template <int WIDTH, bool CENTRED>
__device__ __forceinline__ void norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    bool sums_in_shared, float* shared) {
  const index_t first = threadIdx.x * WIDTH, step = blockDim.x * WIDTH, chunk = blockIdx.x * columns;
  ColumnSums weight_sums{weight_partial + chunk, WIDTH, 1}, bias_sums{bias_partial + chunk, WIDTH, 1};
  if (sums_in_shared) {
    weight_sums = {shared, 1, columns / WIDTH};
    bias_sums = {weight_partial == nullptr ? shared : shared + columns, 1, columns / WIDTH};
  }
  for (index_t i = first; i < columns; i += step) {
    for (int k = 0; k < WIDTH; k++) {
      if (weight_partial != nullptr) *weight_sums.at<WIDTH>(i, k) = 0.0f;
      if (bias_partial != nullptr) *bias_sums.at<WIDTH>(i, k) = 0.0f;
    }
  }
  const index_t last = min(rows, (blockIdx.x + 1) * rows_per_chunk);
  for (index_t row = blockIdx.x * rows_per_chunk; row < last; row++) {
    const float mean = CENTRED ? means[row] : 0.0f, rstd = rstds[row];
    float upstream[WIDTH], normal[WIDTH], factors[WIDTH], sum = 0.0f, along = 0.0f;
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(upstream, dy + row * columns + i);
      load_some<WIDTH>(normal, x + row * columns + i);
      if (weight != nullptr) load_some<WIDTH>(factors, weight + i);
      for (int k = 0; k < WIDTH; k++) {
        const float g = weight == nullptr ? upstream[k] : upstream[k] * (factors[k] + unit_offset);
        sum += g;
        along += g * ((normal[k] - mean) * rstd);
      }
    }
    const float average = CENTRED ? block_sum(sum) / columns : 0.0f;
    along = block_sum(along) / columns;
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(upstream, dy + row * columns + i);
      load_some<WIDTH>(normal, x + row * columns + i);
      if (weight != nullptr) load_some<WIDTH>(factors, weight + i);
      for (int k = 0; k < WIDTH; k++) {
        const float hat = (normal[k] - mean) * rstd;
        const float g = weight == nullptr ? upstream[k] : upstream[k] * (factors[k] + unit_offset);
        if (weight_partial != nullptr) *weight_sums.at<WIDTH>(i, k) += upstream[k] * hat;
        if (bias_partial != nullptr) *bias_sums.at<WIDTH>(i, k) += upstream[k];
        normal[k] = rstd * (g - average - hat * along);
      }
      store_some<WIDTH>(dx + row * columns + i, normal);
    }
  }
  if (!sums_in_shared) return;
  for (index_t i = first; i < columns; i += step) {
    for (int k = 0; k < WIDTH; k++) {
      if (weight_partial != nullptr) weight_partial[chunk + i + k] = *weight_sums.at<WIDTH>(i, k);
      if (bias_partial != nullptr) bias_partial[chunk + i + k] = *bias_sums.at<WIDTH>(i, k);
    }
  }
}

template <bool CENTRED>
__device__ __forceinline__ void choose_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    int sums_in_shared, float* shared) {
  if (columns % VECTOR == 0 && is_aligned(dx) && is_aligned(dy) && is_aligned(x) && is_aligned(weight))
    norm_backward<VECTOR, CENTRED>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns,
                                   unit_offset, rows_per_chunk, sums_in_shared, shared);
  else
    norm_backward<1, CENTRED>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns, unit_offset,
                              rows_per_chunk, sums_in_shared, shared);
}

// dx, dy, x (rows, columns); means, rstds (rows,); weight (columns,) or null; partials (chunks, columns) or null. A block
// for each chunk of rows; dynamic shared memory: `columns` floats for each partial, or none without sums_in_shared.
extern "C" __global__ void __launch_bounds__(512, 2) layer_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, index_t rows_per_chunk,
    int sums_in_shared) {
  extern __shared__ float shared[];
  choose_norm_backward<true>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns, 0.0f,
                             rows_per_chunk, sums_in_shared, shared);
}

// As above, without means.
extern "C" __global__ void __launch_bounds__(512, 2) rms_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* rstds, const stored_t* dy, const stored_t* x,
    const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    int sums_in_shared) {
  extern __shared__ float shared[];
  choose_norm_backward<false>(dx, weight_partial, bias_partial, nullptr, rstds, dy, x, weight, rows, columns,
                              unit_offset, rows_per_chunk, sums_in_shared, shared);
}
