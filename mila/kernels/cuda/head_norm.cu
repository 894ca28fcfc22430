// RMS norm of the query and key heads of packed rows (heads + 2 kv_heads) head_dim: a block for a row at a time, a warp for
// a head at a time. Value heads are copied, or stay where they are if input and output are one array.

// Heads `normed` to `all` of one row, by all threads of the block.
template <int WIDTH>
__device__ __forceinline__ void copy_values(
    stored_t* output, const stored_t* x, index_t row, index_t normed, index_t all, index_t head_dim) {
  float values[WIDTH];
  const index_t first = (row * all + normed) * head_dim, last = (row + 1) * all * head_dim;
  for (index_t i = first + threadIdx.x * WIDTH; i < last; i += blockDim.x * WIDTH) {
    load_some<WIDTH>(values, x + i);
    store_some<WIDTH>(output + i, values);
  }
}

template <int WIDTH>
__device__ __forceinline__ void forward(
    stored_t* output, stored_t* normal, float* rstds, const stored_t* x, const stored_t* query_weight,
    const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads, index_t head_dim, float epsilon) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const index_t normed = heads + kv_heads, all = normed + kv_heads;
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (index_t head = warp; head < normed; head += warps) {
      const stored_t* source = x + (row * all + head) * head_dim;
      stored_t* target = output + (row * all + head) * head_dim;
      const stored_t* weight = head < heads ? query_weight : key_weight;
      float values[WIDTH], factors[WIDTH], squares = 0.0f;
#pragma unroll 1  // most heads are a single round
      for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
        load_some<WIDTH>(values, source + i);
        for (int k = 0; k < WIDTH; k++) squares += values[k] * values[k];
      }
      const float rstd = 1.0f / sqrtf(warp_sum(squares) / head_dim + epsilon);
      if (rstds != nullptr && lane == 0) rstds[row * normed + head] = rstd;
#pragma unroll 1  // most heads are a single round
      for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
        load_some<WIDTH>(values, source + i);
        load_some<WIDTH>(factors, weight + i);
        for (int k = 0; k < WIDTH; k++) values[k] *= rstd;
        if (normal != nullptr) store_some<WIDTH>(normal + (row * normed + head) * head_dim + i, values);
        for (int k = 0; k < WIDTH; k++) values[k] *= factors[k];
        store_some<WIDTH>(target + i, values);
      }
    }
    if (output != x) copy_values<WIDTH>(output, x, row, normed, all, head_dim);
  }
}

// output, x (rows, (heads + 2 kv_heads) head_dim); normal (rows, (heads + kv_heads) head_dim) or null;
// rstds (rows, heads + kv_heads) or null; weights (head_dim,).
extern "C" __global__ void __launch_bounds__(256, 4) head_norm_forward(
    stored_t* output, stored_t* normal, float* rstds, const stored_t* x, const stored_t* query_weight,
    const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads, index_t head_dim, float epsilon) {
  if (head_dim % VECTOR == 0 && is_aligned(output) && is_aligned(normal) && is_aligned(x) && is_aligned(query_weight) &&
      is_aligned(key_weight))
    forward<VECTOR>(output, normal, rstds, x, query_weight, key_weight, rows, heads, kv_heads, head_dim, epsilon);
  else
    forward<1>(output, normal, rstds, x, query_weight, key_weight, rows, heads, kv_heads, head_dim, epsilon);
}

// dx = rstd (g - normal mean(g normal)) with g = dy weight, over one head; adds dy normal to the warp's sums (head_dim,).
template <int WIDTH>
__device__ __forceinline__ void head_backward(
    stored_t* dx, float* sums, const stored_t* normal, float rstd, const stored_t* dy, const stored_t* weight,
    index_t head_dim, int lane) {
  float upstream[WIDTH], normals[WIDTH], factors[WIDTH], along = 0.0f;
#pragma unroll 1
  for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
    load_some<WIDTH>(upstream, dy + i);
    load_some<WIDTH>(normals, normal + i);
    load_some<WIDTH>(factors, weight + i);
    for (int k = 0; k < WIDTH; k++) {
      const float product = upstream[k] * normals[k];
      along += product * factors[k];
      sums[i + k] += product;
    }
  }
  along = warp_sum(along) / head_dim;
#pragma unroll 1
  for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
    load_some<WIDTH>(upstream, dy + i);
    load_some<WIDTH>(normals, normal + i);
    load_some<WIDTH>(factors, weight + i);
    for (int k = 0; k < WIDTH; k++) upstream[k] = rstd * (upstream[k] * factors[k] - normals[k] * along);
    store_some<WIDTH>(dx + i, upstream);
  }
}

// A lane adds to its own elements of its warp's sums alone, until all sums of the block are added up, warp after warp.
template <int WIDTH>
__device__ __forceinline__ void backward(
    stored_t* dx, float* partial, const stored_t* normal, const float* rstds, const stored_t* dy,
    const stored_t* query_weight, const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads,
    index_t head_dim, index_t rows_per_chunk, float* sums) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const index_t normed = heads + kv_heads, all = normed + kv_heads;
  for (index_t i = threadIdx.x; i < warps * 2 * head_dim; i += blockDim.x) sums[i] = 0.0f;
  __syncthreads();
  const index_t last = min(rows, (blockIdx.x + 1) * rows_per_chunk);
  for (index_t row = blockIdx.x * rows_per_chunk; row < last; row++) {
    for (index_t head = warp; head < normed; head += warps) {
      const index_t packed = (row * all + head) * head_dim, saved = row * normed + head;
      float* own = sums + (warp * 2 + (head < heads ? 0 : 1)) * head_dim;
      head_backward<WIDTH>(dx + packed, own, normal + saved * head_dim, rstds[saved], dy + packed,
                           head < heads ? query_weight : key_weight, head_dim, lane);
    }
    if (dx != dy) copy_values<WIDTH>(dx, dy, row, normed, all, head_dim);
  }
  __syncthreads();
  for (index_t i = threadIdx.x; i < 2 * head_dim; i += blockDim.x) {
    float sum = 0.0f;
    for (int other = 0; other < warps; other++) sum += sums[other * 2 * head_dim + i];
    partial[blockIdx.x * 2 * head_dim + i] = sum;
  }
}

// dx, dy, normal, rstds and weights as above; partial (chunks, 2, head_dim): sums of dy normal over the query heads and over
// the key heads of rows_per_chunk rows. A block for each chunk; dynamic shared memory: 2 head_dim floats for each warp.
extern "C" __global__ void __launch_bounds__(256, 4) head_norm_backward(
    stored_t* dx, float* partial, const stored_t* normal, const float* rstds, const stored_t* dy,
    const stored_t* query_weight, const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads,
    index_t head_dim, index_t rows_per_chunk) {
  extern __shared__ float sums[];
  if (head_dim % VECTOR == 0 && is_aligned(dx) && is_aligned(normal) && is_aligned(dy) && is_aligned(query_weight) &&
      is_aligned(key_weight))
    backward<VECTOR>(dx, partial, normal, rstds, dy, query_weight, key_weight, rows, heads, kv_heads, head_dim,
                     rows_per_chunk, sums);
  else
    backward<1>(dx, partial, normal, rstds, dy, query_weight, key_weight, rows, heads, kv_heads, head_dim,
                rows_per_chunk, sums);
}
