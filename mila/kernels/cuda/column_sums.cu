// Sums of columns over rows in two stages, without atomic additions: first over chunks of rows, then over the chunks. The
// chunks depend on shapes alone, and so do the results.

constexpr int COLUMN_WARPS = 8;

// partial (chunks, columns): sums of x (rows, columns) over rows_per_chunk rows each. Blocks of 8 warps: (tiles of columns,
// chunks). A lane adds up WIDTH columns of every eighth row of the chunk; the warps' sums meet in shared memory.
template <int WIDTH>
__device__ __forceinline__ void sum_chunk(
    float* partial, const stored_t* x, index_t rows, index_t columns, index_t rows_per_chunk, float* tile) {
  constexpr int TILE = WARP * WIDTH;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const index_t start = static_cast<index_t>(blockIdx.x) * TILE, column = start + lane * WIDTH;
  const index_t last = min(rows, (blockIdx.y + 1) * rows_per_chunk);
  const bool aligned = is_aligned(x);
  float sums[WIDTH] = {}, values[WIDTH];
  if (column < columns) {
    for (index_t row = blockIdx.y * rows_per_chunk + warp; row < last; row += COLUMN_WARPS) {
      const stored_t* source = x + row * columns + column;
      if (aligned)
        load_some<WIDTH>(values, source);
      else
        for (int k = 0; k < WIDTH; k++) values[k] = load(source + k);
      for (int k = 0; k < WIDTH; k++) sums[k] += values[k];
    }
  }
  for (int k = 0; k < WIDTH; k++) tile[warp * TILE + lane * WIDTH + k] = sums[k];
  __syncthreads();
  for (int i = threadIdx.x; i < TILE && start + i < columns; i += blockDim.x) {
    float sum = 0.0f;
    for (int other = 0; other < COLUMN_WARPS; other++) sum += tile[other * TILE + i];
    partial[blockIdx.y * columns + start + i] = sum;
  }
}

// A tile has 32 * VECTOR columns where by_vectors says so, which wants a multiple of VECTOR columns; else 32.
extern "C" __global__ void __launch_bounds__(256, 4) column_partials(
    float* partial, const stored_t* x, index_t rows, index_t columns, index_t rows_per_chunk, int by_vectors) {
  __shared__ float tile[COLUMN_WARPS * WARP * VECTOR];
  if (by_vectors)
    sum_chunk<VECTOR>(partial, x, rows, columns, rows_per_chunk, tile);
  else
    sum_chunk<1>(partial, x, rows, columns, rows_per_chunk, tile);
}

// output (columns,) (+)= the sum over chunks of `columns` floats in each row of partial (chunks, width). A block of 8 warps
// for 32 columns; with no chunks the sum is 0.
extern "C" __global__ void __launch_bounds__(256, 4) column_totals(
    stored_t* output, const float* partial, index_t chunks, index_t columns, index_t width, int accumulate) {
  __shared__ float tile[COLUMN_WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const index_t column = static_cast<index_t>(blockIdx.x) * WARP + lane;
  float sum = 0.0f;
  if (column < columns)
    for (index_t chunk = warp; chunk < chunks; chunk += COLUMN_WARPS) sum += partial[chunk * width + column];
  tile[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  sum = accumulate ? load(output + column) : 0.0f;
  for (int other = 0; other < COLUMN_WARPS; other++) sum += tile[other][lane];
  store(output + column, sum);
}
