// Gradient of attention (Dao et al. 2022, algorithm 4), in two passes that both compute the weights again. With weights
// P and their dropout factors M: dV = (P M)ᵀ dO, dS = P (M dO Vᵀ - rowsum(dO O)), dQ = scale dS K, dK = scale dSᵀ Q. A
// block owns the gradients of a tile of keys (first pass) or of queries (second) and adds to them in a fixed order:
// there are no atomics, and results repeat bit for bit.
#include "attention_tiles.cuh"

constexpr int OTHERS = 32;              // positions of a tile that passes by
constexpr int WARPS = THREADS / WARP;

// Positions of the tile that a block owns: large heads leave room for half as many.
template <int SIZE>
__device__ constexpr int owned() {
  return SIZE <= 128 ? 64 : 32;
}

// A row of the batch and a query head of it.
struct Head {
  index_t row;
  int head;
};
__device__ __forceinline__ index_t pair_of(const AttentionSizes& sizes, const Head& of) {
  return of.row * sizes.heads + of.head;
}
// The number of a weight among all (B, H, T, S).
__device__ __forceinline__ index_t number_of(const AttentionSizes& sizes, const Head& of, index_t query, index_t key) {
  return (pair_of(sizes, of) * sizes.length + query) * sizes.keys + key;
}

// The vectors of a head, of arrays (B, T, H D) if `stride` is that of a position, and as packed queries and keys lie.
struct HeadInputs {
  Positions<const stored_t> queries, keys, values, dy, output;
  const float* log_sum_exp;  // of T queries
};

__device__ __forceinline__ HeadInputs inputs_of(
    const float* log_sum_exp, const stored_t* dy, const stored_t* output, const stored_t* queries, const stored_t* keys,
    const stored_t* values, const AttentionSizes& sizes, const Head& of) {
  const int size = sizes.size;
  const index_t width = static_cast<index_t>(sizes.heads) * size, own = of.row * sizes.length * width + of.head * size;
  const index_t query_offset = of.row * sizes.length * sizes.query_stride + of.head * size;
  const index_t key_offset = of.row * sizes.key_row_stride + of.head / sizes.group * sizes.key_head_stride;
  return {{queries + query_offset, sizes.query_stride, size},
          {keys + key_offset, sizes.key_stride, size},
          {values + key_offset, sizes.key_stride, size},
          {dy + own, width, size},
          {output + own, width, size},
          log_sum_exp + pair_of(sizes, of) * sizes.length};
}

// What the passes need of each query of a tile: its log-sum-exp, and the product of its output with the output's
// gradient. A warp computes the product of one query at a time. `dy_tile` must be complete.
template <int SIZE, int COUNT>
__device__ __forceinline__ void load_statistics(
    float* log_sum_exp, float* delta, const float* dy_tile, const HeadInputs& inputs, index_t first, int count) {
#pragma unroll 1
  for (int row = threadIdx.x / WARP; row < COUNT; row += WARPS) {
    float product = 0.0f;
    if (row < count)
#pragma unroll 2
      for (int d = threadIdx.x % WARP; d < inputs.output.size; d += WARP)
        product += dy_tile[row * (SIZE + PAD) + d] * load(inputs.output.at(first, row) + d);
    product = warp_sum(product);
    if (threadIdx.x % WARP == 0) {
      delta[row] = product;
      log_sum_exp[row] = row < count ? inputs.log_sum_exp[first + row] : 0.0f;
    }
  }
}

template <int ROWS>
__device__ __forceinline__ void fill(float (&values)[ROWS], float value) {
#pragma unroll
  for (int i = 0; i < ROWS; i++) values[i] = value;
}

// dkeys, dvalues: strides of keys. One block per tile of keys, key/value head and row; all query heads of the key/value
// head pass by. Scores are turned over here, (keys, queries), so that both gradients are plain sums of vectors.
template <int SIZE>
__device__ __forceinline__ void differentiate_keys(
    stored_t* dkeys, stored_t* dvalues, const float* log_sum_exp, const stored_t* dy, const stored_t* output,
    const stored_t* queries, const stored_t* keys, const stored_t* values, const AttentionSizes& sizes) {
  constexpr int OWNED = owned<SIZE>(), ROWS = OWNED / SIDE, COLUMNS = OTHERS / SIDE, STRIDE = SIZE + PAD;
  extern __shared__ __align__(16) float shared[];
  float *const key_tile = shared, *const value_tile = key_tile + OWNED * STRIDE;
  float *const query_tile = value_tile + OWNED * STRIDE, *const dy_tile = query_tile + OTHERS * STRIDE;
  float *const weights = dy_tile + OTHERS * STRIDE, *const dscores = weights + OWNED * (OTHERS + PAD);
  __shared__ float query_log_sum_exp[OTHERS], query_delta[OTHERS];

  const int key_heads = sizes.heads / sizes.group, key_head = blockIdx.x % key_heads;
  const index_t pair = blockIdx.x / key_heads, row = pair % sizes.rows, key = pair / sizes.rows * OWNED;
  const int count = static_cast<int>(min(static_cast<index_t>(OWNED), sizes.keys - key));
  const index_t first = sizes.causal ? key : 0;
  const index_t last = sizes.window > 0 ? min(sizes.length, key + count - 1 + sizes.window) : sizes.length;
  const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
  float key_sums[ROWS][SIZE / SIDE] = {}, value_sums[ROWS][SIZE / SIDE] = {};

#pragma unroll 1
  for (int member = 0; member < sizes.group; member++) {
    const Head of = {row, key_head * sizes.group + member};
    const HeadInputs inputs = inputs_of(log_sum_exp, dy, output, queries, keys, values, sizes, of);
    if (member == 0) {
      load_tile<SIZE, OWNED>(key_tile, inputs.keys, key, count, 1.0f);
      load_tile<SIZE, OWNED>(value_tile, inputs.values, key, count, 1.0f);
    }
#pragma unroll 1
    for (index_t query = first; query < last; query += OTHERS) {
      const int seen = static_cast<int>(min(static_cast<index_t>(OTHERS), sizes.length - query));
      __syncthreads();  // everybody is through with the tiles of before
      load_tile<SIZE, OTHERS>(query_tile, inputs.queries, query, seen, sizes.scale);
      load_tile<SIZE, OTHERS>(dy_tile, inputs.dy, query, seen, 1.0f);
      __syncthreads();
      load_statistics<SIZE, OTHERS>(query_log_sum_exp, query_delta, dy_tile, inputs, query, seen);
      float scores[ROWS][COLUMNS], products[ROWS][COLUMNS];
      multiply_tiles<SIZE>(scores, key_tile, query_tile, sizes.size);
      multiply_tiles<SIZE>(products, value_tile, dy_tile, sizes.size);
      __syncthreads();
      if (sizes.threshold != 0)
        draw_factors<ROWS, COLUMNS>(weights, sizes, number_of(sizes, of, query, key), 1, sizes.keys);
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const Range seen = queries_of(sizes, key + y * ROWS + i, query);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          const int other = x + j * SIDE, place = (y * ROWS + i) * (OTHERS + PAD) + other;
          const float factor = sizes.threshold == 0 ? 1.0f : weights[place];
          const float weight = seen.has(other) ? expf(scores[i][j] - query_log_sum_exp[other]) : 0.0f;
          weights[place] = factor * weight;
          dscores[place] = seen.has(other) ? weight * (factor * products[i][j] - query_delta[other]) : 0.0f;
        }
      }
      __syncthreads();
      add_vectors<SIZE, OTHERS>(value_sums, weights, dy_tile);
      add_vectors<SIZE, OTHERS>(key_sums, dscores, query_tile);  // the queries are scaled
    }
  }

  float ones[ROWS];
  fill(ones, 1.0f);
  __syncthreads();
  write_sums<SIZE>(key_tile, key_sums, ones);
  write_sums<SIZE>(value_tile, value_sums, ones);
  __syncthreads();
  const index_t offset = row * sizes.key_row_stride + key_head * sizes.key_head_stride;
  store_tile<SIZE>({dkeys + offset, sizes.key_stride, sizes.size}, key, count, key_tile);
  store_tile<SIZE>({dvalues + offset, sizes.key_stride, sizes.size}, key, count, value_tile);
}

// dqueries: strides of queries. One block per tile of queries, head and row; the keys that they see pass by.
template <int SIZE>
__device__ __forceinline__ void differentiate_queries(
    stored_t* dqueries, const float* log_sum_exp, const stored_t* dy, const stored_t* output, const stored_t* queries,
    const stored_t* keys, const stored_t* values, const AttentionSizes& sizes) {
  constexpr int OWNED = owned<SIZE>(), ROWS = OWNED / SIDE, COLUMNS = OTHERS / SIDE, STRIDE = SIZE + PAD;
  extern __shared__ __align__(16) float shared[];
  float *const query_tile = shared, *const dy_tile = query_tile + OWNED * STRIDE;
  float *const key_tile = dy_tile + OWNED * STRIDE, *const value_tile = key_tile + OTHERS * STRIDE;
  float* const dscores = value_tile + OTHERS * STRIDE;
  __shared__ float query_log_sum_exp[OWNED], query_delta[OWNED];

  const index_t pair = blockIdx.x / sizes.heads, tiles = (sizes.length + OWNED - 1) / OWNED;
  const Head of = {pair % sizes.rows, static_cast<int>(blockIdx.x % sizes.heads)};
  // Of a causal call the last tiles see most keys: the longest work first.
  const index_t query = (tiles - 1 - pair / sizes.rows) * OWNED;
  const int count = static_cast<int>(min(static_cast<index_t>(OWNED), sizes.length - query));
  const index_t first = sizes.window > 0 ? max(0LL, query - sizes.window + 1) : 0;
  const index_t last = sizes.causal ? query + count : sizes.keys;
  const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
  const HeadInputs inputs = inputs_of(log_sum_exp, dy, output, queries, keys, values, sizes, of);
  float sums[ROWS][SIZE / SIDE] = {};

  load_tile<SIZE, OWNED>(query_tile, inputs.queries, query, count, sizes.scale);
  load_tile<SIZE, OWNED>(dy_tile, inputs.dy, query, count, 1.0f);
  __syncthreads();
  load_statistics<SIZE, OWNED>(query_log_sum_exp, query_delta, dy_tile, inputs, query, count);
#pragma unroll 1
  for (index_t key = first; key < last; key += OTHERS) {
    const int seen = static_cast<int>(min(static_cast<index_t>(OTHERS), last - key));
    __syncthreads();  // everybody is through with the tiles of before
    load_tile<SIZE, OTHERS>(key_tile, inputs.keys, key, seen, 1.0f);
    load_tile<SIZE, OTHERS>(value_tile, inputs.values, key, seen, 1.0f);
    __syncthreads();
    float scores[ROWS][COLUMNS], products[ROWS][COLUMNS];
    multiply_tiles<SIZE>(scores, query_tile, key_tile, sizes.size);
    multiply_tiles<SIZE>(products, dy_tile, value_tile, sizes.size);
    if (sizes.threshold != 0)
      draw_factors<ROWS, COLUMNS>(dscores, sizes, number_of(sizes, of, query, key), sizes.keys, 1);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const int own = y * ROWS + i;
      const Range seen = keys_of(sizes, query + own, key, last);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        const int other = x + j * SIDE, place = own * (OTHERS + PAD) + other;
        const float factor = sizes.threshold == 0 ? 1.0f : dscores[place];
        const float weight = expf(scores[i][j] - query_log_sum_exp[own]);
        dscores[place] = seen.has(other) ? weight * (factor * products[i][j] - query_delta[own]) : 0.0f;
      }
    }
    __syncthreads();
    add_vectors<SIZE, OTHERS>(sums, dscores, key_tile);
  }

  float factors[ROWS];
  fill(factors, sizes.scale);
  __syncthreads();
  write_sums<SIZE>(query_tile, sums, factors);
  __syncthreads();
  const index_t offset = of.row * sizes.length * sizes.query_stride + of.head * sizes.size;
  store_tile<SIZE>({dqueries + offset, sizes.query_stride, sizes.size}, query, count, query_tile);
}

// The passes for heads of at most 64, 128 or 256 elements.
extern "C" __global__ void __launch_bounds__(256, 2) attention_key_gradients_64(
    stored_t* dkeys, stored_t* dvalues, const float* log_sum_exp, const stored_t* dy, const stored_t* output,
    const stored_t* queries, const stored_t* keys, const stored_t* values, AttentionSizes sizes) {
  differentiate_keys<64>(dkeys, dvalues, log_sum_exp, dy, output, queries, keys, values, sizes);
}
extern "C" __global__ void __launch_bounds__(256, 1) attention_key_gradients_128(
    stored_t* dkeys, stored_t* dvalues, const float* log_sum_exp, const stored_t* dy, const stored_t* output,
    const stored_t* queries, const stored_t* keys, const stored_t* values, AttentionSizes sizes) {
  differentiate_keys<128>(dkeys, dvalues, log_sum_exp, dy, output, queries, keys, values, sizes);
}
extern "C" __global__ void __launch_bounds__(256, 1) attention_key_gradients_256(
    stored_t* dkeys, stored_t* dvalues, const float* log_sum_exp, const stored_t* dy, const stored_t* output,
    const stored_t* queries, const stored_t* keys, const stored_t* values, AttentionSizes sizes) {
  differentiate_keys<256>(dkeys, dvalues, log_sum_exp, dy, output, queries, keys, values, sizes);
}
extern "C" __global__ void __launch_bounds__(256, 2) attention_query_gradients_64(
    stored_t* dqueries, const float* log_sum_exp, const stored_t* dy, const stored_t* output, const stored_t* queries,
    const stored_t* keys, const stored_t* values, AttentionSizes sizes) {
  differentiate_queries<64>(dqueries, log_sum_exp, dy, output, queries, keys, values, sizes);
}
extern "C" __global__ void __launch_bounds__(256, 1) attention_query_gradients_128(
    stored_t* dqueries, const float* log_sum_exp, const stored_t* dy, const stored_t* output, const stored_t* queries,
    const stored_t* keys, const stored_t* values, AttentionSizes sizes) {
  differentiate_queries<128>(dqueries, log_sum_exp, dy, output, queries, keys, values, sizes);
}
extern "C" __global__ void __launch_bounds__(256, 1) attention_query_gradients_256(
    stored_t* dqueries, const float* log_sum_exp, const stored_t* dy, const stored_t* output, const stored_t* queries,
    const stored_t* keys, const stored_t* values, AttentionSizes sizes) {
  differentiate_queries<256>(dqueries, log_sum_exp, dy, output, queries, keys, values, sizes);
}
