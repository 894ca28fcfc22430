// Sums of arrays over some of their axes, of products over rows, and of all products. Every sum is in float, and its
// order depends on shapes alone: where sums are few and long they are made in parts, each of which goes to `partial`,
// and column_sums.cu adds those.
#include "axes.cuh"

constexpr int WARPS = 8;  // of a block

// output[row, column] (+)= factor * the sum of x over `reduced`, for axes `kept` (rows) and columns that lie together.
//
// partial (parts, rows, columns) or null: then there is one part, for output. Blocks of 8 warps: (tiles of 32 columns,
// rows, parts). A lane adds up one column of every eighth place; the warps' sums meet in shared memory.
extern "C" __global__ void __launch_bounds__(256) reduce_columns(
    stored_t* output, float* partial, const stored_t* x, Axes kept, Axes reduced, index_t rows, index_t columns,
    index_t places, index_t per_part, float factor, int accumulate) {
  __shared__ float sums[WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const index_t column = static_cast<index_t>(blockIdx.x) * WARP + lane, first = blockIdx.z * per_part;
  const index_t last = min(places, first + per_part);
  for (index_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float sum = 0.0f;
    if (column < columns) {
      const stored_t* const source = x + offset_of(kept, row) + column;
      for (index_t place = first + warp; place < last; place += WARPS) sum += load(source + offset_of(reduced, place));
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < columns) {
      for (int other = 1; other < WARPS; other++) sum += sums[other][lane];
      const index_t target = row * columns + column;
      if (partial)
        partial[blockIdx.z * rows * columns + target] = factor * sum;
      else
        store(output + target, accumulate ? load(output + target) + factor * sum : factor * sum);
    }
    __syncthreads();  // nobody writes before these sums were read
  }
}

// The same where what is summed lies together: a warp for every row and part, in blocks of 8 warps: (rows, parts).
extern "C" __global__ void __launch_bounds__(256) reduce_rows(
    stored_t* output, float* partial, const stored_t* x, Axes kept, Axes reduced, index_t rows, index_t places,
    index_t per_part, float factor, int accumulate) {
  const int lane = threadIdx.x % WARP;
  const index_t first = blockIdx.y * per_part, last = min(places, first + per_part);
  for (index_t row = thread_index() / WARP; row < rows; row += thread_count() / WARP) {
    const stored_t* const source = x + offset_of(kept, row);
    float sum = 0.0f;
    for (index_t place = first + lane; place < last; place += WARP) sum += load(source + offset_of(reduced, place));
    sum = warp_sum(sum);
    if (lane != 0) continue;
    if (partial)
      partial[blockIdx.y * rows + row] = factor * sum;
    else
      store(output + row, accumulate ? load(output + row) + factor * sum : factor * sum);
  }
}

// partial (chunks, columns): sums of a * b, both (rows, columns), over rows_per_chunk rows each. Blocks of 8 warps:
// (tiles of 32 columns, chunks).
extern "C" __global__ void __launch_bounds__(256) column_products(
    float* partial, const stored_t* a, const stored_t* b, index_t rows, index_t columns, index_t rows_per_chunk) {
  __shared__ float sums[WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const index_t column = static_cast<index_t>(blockIdx.x) * WARP + lane, first = blockIdx.y * rows_per_chunk;
  const index_t last = min(rows, first + rows_per_chunk);
  float sum = 0.0f;
  if (column < columns)
    for (index_t row = first + warp; row < last; row += WARPS)
      sum = fmaf(load(a + row * columns + column), load(b + row * columns + column), sum);
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int other = 1; other < WARPS; other++) sum += sums[other][lane];
  partial[blockIdx.y * columns + column] = sum;
}

// partial (chunks,): sums of a * b, both (size,), over chunks of per_chunk elements. A block for each chunk.
extern "C" __global__ void __launch_bounds__(256) products(
    float* partial, const stored_t* a, const stored_t* b, index_t size, index_t per_chunk) {
  const index_t first = blockIdx.x * per_chunk, last = min(size, first + per_chunk);
  float sum = 0.0f;
  for (index_t i = first + threadIdx.x; i < last; i += blockDim.x) sum = fmaf(load(a + i), load(b + i), sum);
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
