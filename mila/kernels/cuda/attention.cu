// Attention, forward: tiles of queries against tiles of keys with an online softmax (Milakov & Gimelshein 2018; Dao et
// al. 2022), so that scores never leave the multiprocessor. One kernel serves packed projections, queries and keys that
// lie apart, and chunks of queries against a ring of keys: they differ in strides and in where a row stands.
#include "attention_tiles.cuh"
#include "row_positions.cuh"

constexpr int QUERIES = 64;             // of a tile
constexpr int ROWS = QUERIES / SIDE;    // of a thread
constexpr index_t NO_END = 1LL << 62;   // of keys that lie in no ring

// Keys of a tile: so many that two blocks fit a multiprocessor for heads of up to 128 elements.
template <int SIZE>
__device__ constexpr int keys_of_tile() {
  return SIZE <= 64 ? 64 : 32;
}

// What the softmax of a thread's rows is so far: the largest score, and the sum of the exponentials less that.
struct Softmax {
  float peak[ROWS], total[ROWS];
};

// Turn scores into weights (QUERIES, KEYS) and rescale the sums of before. The tiles begin at positions `query` and
// `key`, keys from `last` on are hidden. With dropout `weights` holds its factors.
template <int SIZE, int KEYS>
__device__ __forceinline__ void weigh(
    float* weights, float (&sums)[ROWS][SIZE / SIDE], Softmax& softmax, float (&scores)[ROWS][KEYS / SIDE],
    const AttentionSizes& sizes, index_t query, index_t key, index_t last) {
  const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const Range seen = keys_of(sizes, query + y * ROWS + i, key, last);
    float peak = softmax.peak[i];
#pragma unroll
    for (int j = 0; j < KEYS / SIDE; j++) {
      if (!seen.has(x + j * SIDE)) scores[i][j] = Maximum::neutral();
      peak = Maximum::of(peak, scores[i][j]);
    }
    peak = side_reduce<Maximum>(peak);
    // Until a row sees its first key its peak is minus infinity, and all its weights are to be zero.
    const float base = peak == Maximum::neutral() ? 0.0f : peak;
    const float rescale = expf(softmax.peak[i] - base);
    float* const row = weights + (y * ROWS + i) * (KEYS + PAD) + x;
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < KEYS / SIDE; j++) {
      const float weight = expf(scores[i][j] - base);
      total += weight;
      row[j * SIDE] = sizes.threshold == 0 ? weight : weight * row[j * SIDE];
    }
    softmax.peak[i] = peak;
    softmax.total[i] = softmax.total[i] * rescale + side_reduce<Sum>(total);
#pragma unroll
    for (int c = 0; c < SIZE / SIDE; c++) sums[i][c] *= rescale;
  }
}

// The block's tile; block by block heads change first, then rows, then tiles, the last tile first: of a causal call it
// sees most keys, and the longest work first leaves the least waiting at the end.
struct Place {
  int head;
  index_t row, tile;
};
__device__ __forceinline__ Place place_of(const AttentionSizes& sizes, int tile_size) {
  const index_t tiles = (sizes.length + tile_size - 1) / tile_size, pair = blockIdx.x / sizes.heads;
  return {static_cast<int>(blockIdx.x % sizes.heads), pair % sizes.rows, tiles - 1 - pair / sizes.rows};
}

// output (B, T, H D); log_sum_exp (B, H, T) or null. Shared memory: tiles of queries, keys, values and weights.
template <int SIZE>
__device__ __forceinline__ void attend(
    stored_t* output, float* log_sum_exp, const stored_t* queries, const stored_t* keys, const stored_t* values,
    const AttentionSizes& sizes, const RowPositions& rows) {
  constexpr int KEYS = keys_of_tile<SIZE>(), STRIDE = SIZE + PAD;
  extern __shared__ __align__(16) float shared[];
  float *const query_tile = shared, *const key_tile = query_tile + QUERIES * STRIDE;
  float *const value_tile = key_tile + KEYS * STRIDE, *const weights = value_tile + KEYS * STRIDE;
  const Place place = place_of(sizes, QUERIES);
  const int size = sizes.size, key_head = place.head / sizes.group;
  // Without a ring, queries stand at 0 to T - 1.
  const index_t start = sizes.is_ring ? rows.start[place.row] : 0;
  const index_t length = sizes.is_ring ? rows.length[place.row] : sizes.length;
  const index_t slots = sizes.is_ring ? sizes.keys : NO_END, pair = place.row * sizes.heads + place.head;
  const index_t first_query = place.tile * QUERIES;
  const int count = static_cast<int>(max(0LL, min(length - first_query, static_cast<index_t>(QUERIES))));
  const index_t query = start + first_query;  // its position
  const index_t key_offset = place.row * sizes.key_row_stride + key_head * sizes.key_head_stride;
  const Positions<const stored_t> query_rows = {
      queries + place.row * sizes.length * sizes.query_stride + place.head * size, sizes.query_stride, size};
  const Ring<const stored_t> key_rows = {{keys + key_offset, sizes.key_stride, size}, slots};
  const Ring<const stored_t> value_rows = {{values + key_offset, sizes.key_stride, size}, slots};

  load_tile<SIZE, QUERIES>(query_tile, query_rows, first_query, count, sizes.scale);
  float sums[ROWS][SIZE / SIDE] = {};
  Softmax softmax;
#pragma unroll
  for (int i = 0; i < ROWS; i++) softmax.peak[i] = Maximum::neutral(), softmax.total[i] = 0.0f;
  const index_t last = count == 0 ? 0 : sizes.causal ? query + count : sizes.keys;
  const index_t first = sizes.window > 0 ? max(0LL, query - sizes.window + 1) : 0;
  for (index_t key = first; key < last; key += KEYS) {
    const int seen = static_cast<int>(min(static_cast<index_t>(KEYS), last - key));
    const index_t slot = sizes.is_ring ? key % slots : key;
    __syncthreads();  // everybody is through with the tiles of before
    load_tile<SIZE, KEYS>(key_tile, key_rows, slot, seen, 1.0f);
    load_tile<SIZE, KEYS>(value_tile, value_rows, slot, seen, 1.0f);
    __syncthreads();
    float scores[ROWS][KEYS / SIDE];
    multiply_tiles<SIZE>(scores, query_tile, key_tile, size);
    if (sizes.threshold != 0)
      draw_factors<ROWS, KEYS / SIDE>(
          weights, sizes, (pair * sizes.length + first_query) * sizes.keys + key, sizes.keys, 1);
    weigh<SIZE, KEYS>(weights, sums, softmax, scores, sizes, query, key, last);
    __syncthreads();
    add_vectors<SIZE, KEYS>(sums, weights, value_tile);
  }

  float factors[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const int own = threadIdx.x / SIDE * ROWS + i;
    factors[i] = own < count ? 1.0f / softmax.total[i] : 0.0f;
    if (log_sum_exp != nullptr && own < count && threadIdx.x % SIDE == 0)
      log_sum_exp[pair * sizes.length + first_query + own] = softmax.peak[i] + logf(softmax.total[i]);
  }
  __syncthreads();
  write_sums<SIZE>(query_tile, sums, factors);
  __syncthreads();
  const index_t width = static_cast<index_t>(sizes.heads) * size;
  const Positions<stored_t> result = {output + place.row * sizes.length * width + place.head * size, width, size};
  // Queries behind the row's last give zero.
  const int written = static_cast<int>(min(static_cast<index_t>(QUERIES), sizes.length - first_query));
  store_tile<SIZE>(result, first_query, written, query_tile);
}

// One block per tile of queries, head and row; for heads of at most 64, 128 or 256 elements. Where the rows stand
// matters with rings only, and then there are at most MOST_ROWS.
extern "C" __global__ void __launch_bounds__(256, 2) attention_forward_64(
    stored_t* output, float* log_sum_exp, const stored_t* queries, const stored_t* keys, const stored_t* values,
    AttentionSizes sizes, RowPositions rows) {
  attend<64>(output, log_sum_exp, queries, keys, values, sizes, rows);
}
extern "C" __global__ void __launch_bounds__(256, 2) attention_forward_128(
    stored_t* output, float* log_sum_exp, const stored_t* queries, const stored_t* keys, const stored_t* values,
    AttentionSizes sizes, RowPositions rows) {
  attend<128>(output, log_sum_exp, queries, keys, values, sizes, rows);
}
extern "C" __global__ void __launch_bounds__(256, 1) attention_forward_256(
    stored_t* output, float* log_sum_exp, const stored_t* queries, const stored_t* keys, const stored_t* values,
    AttentionSizes sizes, RowPositions rows) {
  attend<256>(output, log_sum_exp, queries, keys, values, sizes, rows);
}
