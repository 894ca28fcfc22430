// What cuBLAS does not do for linear projections: biases, weights of narrower dtypes, products of a single row.
#include "float8.cuh"
#include "rows.cuh"

// output (rows, columns): every row is the bias (columns,), to which the product is added in turn: one rounding.
extern "C" __global__ void __launch_bounds__(256, 4) spread_bias(
    stored_t* output, const stored_t* bias, index_t rows, index_t columns) {
  const bool vectors = columns % VECTOR == 0 && is_aligned(output) && is_aligned(bias);
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    if (vectors) {
      for (index_t i = threadIdx.x * VECTOR; i < columns; i += blockDim.x * VECTOR)
        *reinterpret_cast<Vector<stored_t>*>(output + row * columns + i) =
            *reinterpret_cast<const Vector<stored_t>*>(bias + i);
    } else {
      for (index_t i = threadIdx.x; i < columns; i += blockDim.x) output[row * columns + i] = bias[i];
    }
  }
}

// ---- a single row -----------------------------------------------------------------------------------------------------
// output (out_features,) = x (in_features,) @ weight.T * scales + bias; scales and bias may be null. What counts is to read the
// weight once: a warp for each of its rows, 16 bytes of it at a time in each lane where they are aligned.
template <int WIDTH, typename Weight>
__device__ __forceinline__ void multiply_row(
    stored_t* output, const stored_t* x, const Weight* weight, const float* scales, const stored_t* bias,
    index_t out_features, index_t in_features) {
  constexpr int PART = WIDTH < VECTOR ? WIDTH : VECTOR;  // elements of x in one access
  const int lane = threadIdx.x % WARP;
  for (index_t row = thread_index() / WARP; row < out_features; row += thread_count() / WARP) {
    float factors[WIDTH], values[PART], sum = 0.0f;
    for (index_t i = lane * WIDTH; i < in_features; i += WARP * WIDTH) {
      load_run<WIDTH>(factors, weight + row * in_features + i);
      for (int part = 0; part < WIDTH; part += PART) {
        load_some<PART>(values, x + i + part);
        for (int k = 0; k < PART; k++) sum += values[k] * factors[part + k];
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      if (scales != nullptr) sum *= scales[row];
      if (bias != nullptr) sum += load(bias + row);
      store(output + row, sum);
    }
  }
}

template <typename Weight>
__device__ __forceinline__ void choose_multiply_row(
    stored_t* output, const stored_t* x, const Weight* weight, const float* scales, const stored_t* bias,
    index_t out_features, index_t in_features) {
  constexpr int WIDTH = Vector<Weight>::LENGTH;
  if (in_features % WIDTH == 0 && is_aligned(x) && is_aligned(weight))
    multiply_row<WIDTH>(output, x, weight, scales, bias, out_features, in_features);
  else
    multiply_row<1>(output, x, weight, scales, bias, out_features, in_features);
}

extern "C" __global__ void __launch_bounds__(256, 2) row_stored(
    stored_t* output, const stored_t* x, const stored_t* weight, const float* scales, const stored_t* bias,
    index_t out_features, index_t in_features) {
  choose_multiply_row(output, x, weight, scales, bias, out_features, in_features);
}

extern "C" __global__ void __launch_bounds__(256, 3) row_float8(
    stored_t* output, const stored_t* x, const float8_t* weight, const float* scales, const stored_t* bias,
    index_t out_features, index_t in_features) {
  choose_multiply_row(output, x, weight, scales, bias, out_features, in_features);
}

extern "C" __global__ void __launch_bounds__(256, 3) row_bfloat16(
    stored_t* output, const stored_t* x, const __nv_bfloat16* weight, const float* scales, const stored_t* bias,
    index_t out_features, index_t in_features) {
  choose_multiply_row(output, x, weight, scales, bias, out_features, in_features);
}

extern "C" __global__ void __launch_bounds__(256, 3) row_float16(
    stored_t* output, const stored_t* x, const __half* weight, const float* scales, const stored_t* bias,
    index_t out_features, index_t in_features) {
  choose_multiply_row(output, x, weight, scales, bias, out_features, in_features);
}

// ---- narrower weights, by tiles ---------------------------------------------------------------------------------------
// output (size,) = source (size,), exact for what is narrower.
template <typename Narrow>
__device__ __forceinline__ void widen(stored_t* output, const Narrow* source, index_t size) {
  const bool vectors = is_aligned(output) && is_aligned(source);
  for_elements(size, vectors, [=](index_t i, auto width) {
    constexpr int N = decltype(width)::N;
    float values[N];
    load_run<N>(values, source + i);
    store_some<N>(output + i, values);
  });
}

extern "C" __global__ void __launch_bounds__(256, 4) widen_float8(stored_t* output, const float8_t* source, index_t size) {
  widen(output, source, size);
}

extern "C" __global__ void __launch_bounds__(256, 4) widen_bfloat16(
    stored_t* output, const __nv_bfloat16* source, index_t size) {
  widen(output, source, size);
}

extern "C" __global__ void __launch_bounds__(256, 4) widen_float16(stored_t* output, const __half* source, index_t size) {
  widen(output, source, size);
}

// Columns `first` to `first + width` of output (rows, columns) = product (rows, width) * scales + bias, which may be null; both
// are those of all columns. A block for each row.
extern "C" __global__ void __launch_bounds__(256, 4) finish_tile(
    stored_t* output, const float* product, const float* scales, const stored_t* bias, index_t rows, index_t columns,
    index_t first, index_t width) {
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (index_t i = threadIdx.x; i < width; i += blockDim.x) {
      float value = product[row * width + i];
      if (scales != nullptr) value *= scales[first + i];
      if (bias != nullptr) value += load(bias + first + i);
      store(output + row * columns + first + i, value);
    }
  }
}

// ---- products with narrower factors or results ------------------------------------------------------------------------
// output (M, N) (+)= a @ b (K, N), where element (m, k) of a lies at m * a_row + k * a_column. Blocks of 16 x 16 threads, one for
// each 16 x 16 elements, along x over M, which may be millions of rows. CUDA computes networks in the dtype that they are stored
// in, so that no network comes here: simple.
constexpr int SIDE = 16;

template <typename Output, typename Right>
__device__ __forceinline__ void multiply_tile(
    Output* output, const stored_t* a, const Right* b, index_t M, index_t N, index_t K, index_t a_row, index_t a_column,
    int accumulate) {
  __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1];
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  const index_t m = static_cast<index_t>(blockIdx.x) * SIDE + y, n = static_cast<index_t>(blockIdx.y) * SIDE + x;
  float sum = 0.0f;
  for (index_t start = 0; start < K; start += SIDE) {
    left[y][x] = m < M && start + x < K ? load(a + m * a_row + (start + x) * a_column) : 0.0f;
    right[y][x] = start + y < K && n < N ? load(b + (start + y) * N + n) : 0.0f;
    __syncthreads();
    for (int k = 0; k < SIDE; k++) sum += left[y][k] * right[k][x];
    __syncthreads();
  }
  if (m >= M || n >= N) return;
  Output* target = output + m * N + n;
  store(target, accumulate ? load(target) + sum : sum);
}

extern "C" __global__ void __launch_bounds__(256, 4) product_of_bfloat16(
    stored_t* output, const stored_t* a, const __nv_bfloat16* b, index_t M, index_t N, index_t K) {
  multiply_tile(output, a, b, M, N, K, K, 1, 0);
}

extern "C" __global__ void __launch_bounds__(256, 4) product_of_float16(
    stored_t* output, const stored_t* a, const __half* b, index_t M, index_t N, index_t K) {
  multiply_tile(output, a, b, M, N, K, K, 1, 0);
}

// a (K, M) is transposed.
extern "C" __global__ void __launch_bounds__(256, 4) transposed_product_to_bfloat16(
    __nv_bfloat16* output, const stored_t* a, const stored_t* b, index_t M, index_t N, index_t K, int accumulate) {
  multiply_tile(output, a, b, M, N, K, 1, M, accumulate);
}

extern "C" __global__ void __launch_bounds__(256, 4) transposed_product_to_float16(
    __half* output, const stored_t* a, const stored_t* b, index_t M, index_t N, index_t K, int accumulate) {
  multiply_tile(output, a, b, M, N, K, 1, M, accumulate);
}
