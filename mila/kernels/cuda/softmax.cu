// Softmax along one axis of arrays (outer, size, inner), and its gradient. Along the last axis (inner = 1) a group of
// threads shares a row, a warp where rows are short and a block where they are long; along others neighbouring threads have
// neighbouring rows, so that they read neighbouring elements.

// The threads that share a row.
template <bool BLOCK>
struct Group {
  static __device__ __forceinline__ int thread() { return BLOCK ? threadIdx.x : threadIdx.x % WARP; }
  static __device__ __forceinline__ int threads() { return BLOCK ? blockDim.x : WARP; }
  static __device__ __forceinline__ index_t index() { return BLOCK ? blockIdx.x : thread_index() / WARP; }
  static __device__ __forceinline__ index_t count() { return BLOCK ? gridDim.x : thread_count() / WARP; }
  static __device__ __forceinline__ float sum(float value) { return BLOCK ? block_sum(value) : warp_sum(value); }
  static __device__ __forceinline__ float maximum(float value) { return BLOCK ? block_max(value) : warp_max(value); }
};

template <int WIDTH, bool BLOCK>
__device__ __forceinline__ void row_forward(stored_t* output, const stored_t* x, index_t size) {
  using Threads = Group<BLOCK>;
  const index_t first = Threads::thread() * WIDTH, step = Threads::threads() * WIDTH;
  float values[WIDTH], largest = Maximum::neutral(), sum = 0.0f;
  for (index_t i = first; i < size; i += step) {
    load_some<WIDTH>(values, x + i);
    for (int k = 0; k < WIDTH; k++) largest = Maximum::of(largest, values[k]);
  }
  largest = Threads::maximum(largest);
  for (index_t i = first; i < size; i += step) {
    load_some<WIDTH>(values, x + i);
    for (int k = 0; k < WIDTH; k++) sum += expf(values[k] - largest);
  }
  const float factor = 1.0f / Threads::sum(sum);
  for (index_t i = first; i < size; i += step) {
    load_some<WIDTH>(values, x + i);
    for (int k = 0; k < WIDTH; k++) values[k] = expf(values[k] - largest) * factor;
    store_some<WIDTH>(output + i, values);
  }
}

// dx = y (dy - sum(dy y)).
template <int WIDTH, bool BLOCK>
__device__ __forceinline__ void row_backward(
    stored_t* dx, const stored_t* dy, const stored_t* y, index_t size) {
  using Threads = Group<BLOCK>;
  const index_t first = Threads::thread() * WIDTH, step = Threads::threads() * WIDTH;
  float upstream[WIDTH], values[WIDTH], sum = 0.0f;
  for (index_t i = first; i < size; i += step) {
    load_some<WIDTH>(upstream, dy + i);
    load_some<WIDTH>(values, y + i);
    for (int k = 0; k < WIDTH; k++) sum += upstream[k] * values[k];
  }
  sum = Threads::sum(sum);
  for (index_t i = first; i < size; i += step) {
    load_some<WIDTH>(upstream, dy + i);
    load_some<WIDTH>(values, y + i);
    for (int k = 0; k < WIDTH; k++) values[k] *= upstream[k] - sum;
    store_some<WIDTH>(dx + i, values);
  }
}

template <int WIDTH, bool BLOCK>
__device__ __forceinline__ void rows_forward(stored_t* output, const stored_t* x, index_t rows, index_t size) {
  for (index_t row = Group<BLOCK>::index(); row < rows; row += Group<BLOCK>::count())
    row_forward<WIDTH, BLOCK>(output + row * size, x + row * size, size);
}

template <int WIDTH, bool BLOCK>
__device__ __forceinline__ void rows_backward(
    stored_t* dx, const stored_t* dy, const stored_t* y, index_t rows, index_t size) {
  for (index_t row = Group<BLOCK>::index(); row < rows; row += Group<BLOCK>::count())
    row_backward<WIDTH, BLOCK>(dx + row * size, dy + row * size, y + row * size, size);
}

// output, x (rows, size): a warp for each row, 8 to a block.
extern "C" __global__ void __launch_bounds__(256, 4) softmax_forward_warps(
    stored_t* output, const stored_t* x, index_t rows, index_t size) {
  if (size % VECTOR == 0 && is_aligned(output) && is_aligned(x))
    rows_forward<VECTOR, false>(output, x, rows, size);
  else
    rows_forward<1, false>(output, x, rows, size);
}

// output, x (rows, size): a block for each row.
extern "C" __global__ void __launch_bounds__(512, 2) softmax_forward_blocks(
    stored_t* output, const stored_t* x, index_t rows, index_t size) {
  if (size % VECTOR == 0 && is_aligned(output) && is_aligned(x))
    rows_forward<VECTOR, true>(output, x, rows, size);
  else
    rows_forward<1, true>(output, x, rows, size);
}

// dx, dy, y (rows, size): a warp for each row, 8 to a block.
extern "C" __global__ void __launch_bounds__(256, 3) softmax_backward_warps(
    stored_t* dx, const stored_t* dy, const stored_t* y, index_t rows, index_t size) {
  if (size % VECTOR == 0 && is_aligned(dx) && is_aligned(dy) && is_aligned(y))
    rows_backward<VECTOR, false>(dx, dy, y, rows, size);
  else
    rows_backward<1, false>(dx, dy, y, rows, size);
}

// dx, dy, y (rows, size): a block for each row.
extern "C" __global__ void __launch_bounds__(512, 2) softmax_backward_blocks(
    stored_t* dx, const stored_t* dy, const stored_t* y, index_t rows, index_t size) {
  if (size % VECTOR == 0 && is_aligned(dx) && is_aligned(dy) && is_aligned(y))
    rows_backward<VECTOR, true>(dx, dy, y, rows, size);
  else
    rows_backward<1, true>(dx, dy, y, rows, size);
}

// output, x (outer, size, inner): a thread for each of outer * inner rows.
extern "C" __global__ void __launch_bounds__(256, 4) softmax_forward_strided(
    stored_t* output, const stored_t* x, index_t outer, index_t size, index_t inner) {
  for (index_t row = thread_index(); row < outer * inner; row += thread_count()) {
    const index_t first = row / inner * size * inner + row % inner;
    float largest = Maximum::neutral(), sum = 0.0f;
    for (index_t i = 0; i < size; i++) largest = Maximum::of(largest, load(x + first + i * inner));
    for (index_t i = 0; i < size; i++) sum += expf(load(x + first + i * inner) - largest);
    const float factor = 1.0f / sum;
    for (index_t i = 0; i < size; i++)
      store(output + first + i * inner, expf(load(x + first + i * inner) - largest) * factor);
  }
}

// dx, dy, y (outer, size, inner): a thread for each of outer * inner rows.
extern "C" __global__ void __launch_bounds__(256, 4) softmax_backward_strided(
    stored_t* dx, const stored_t* dy, const stored_t* y, index_t outer, index_t size, index_t inner) {
  for (index_t row = thread_index(); row < outer * inner; row += thread_count()) {
    const index_t first = row / inner * size * inner + row % inner;
    float sum = 0.0f;
    for (index_t i = 0; i < size; i++) sum += load(dy + first + i * inner) * load(y + first + i * inner);
    for (index_t i = 0; i < size; i++) {
      const index_t at = first + i * inner;
      store(dx + at, load(y + at) * (load(dy + at) - sum));
    }
  }
}
