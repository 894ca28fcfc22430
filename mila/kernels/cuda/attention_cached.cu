// Attention with rings of keys and values (B, K, S, D): position p lies in slot p % S. New positions are appended first.
// A chunk of queries is then a matter of attention.cu; here, a single query per row attends to what its row keeps. One
// query is too little work for tiles: the keys of a row are split over blocks instead, and their results are merged in
// order.
#include "row_positions.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / WARP;
constexpr int MOST_SIZE = 256;      // elements of a head
constexpr int HEADS = WARPS;        // query heads that share a pass over the keys; each has a warp for its softmax
constexpr int KEYS = 128;           // of a step
constexpr int LANES = 8;            // that share a key's score
constexpr int KEYS_AT_ONCE = THREADS / LANES;
constexpr int LEAST_SPLIT = 256;    // keys of a split, at least
constexpr int MOST_SPLITS = 64;     // of a row

struct CacheSizes {
  index_t rows;      // B
  index_t length;    // T
  index_t slots;     // S
  index_t width;     // of a packed position: (H + 2 K) D
  index_t window;    // 0: none
  index_t splits;    // of a row in this launch
  float scale;
  int heads;         // H
  int key_heads;     // K
  int size;          // D
};

template <int N>
__device__ __forceinline__ void append_position(
    stored_t* keys, stored_t* values, const stored_t* packed, index_t slot, index_t row, const CacheSizes& sizes) {
  const int elements = sizes.key_heads * sizes.size;
  const stored_t* const new_keys = packed + sizes.width - 2 * elements;
  for (int i = threadIdx.x * N; i < elements; i += blockDim.x * N) {
    const int head = i / sizes.size, element = i % sizes.size;
    const index_t target = ((row * sizes.key_heads + head) * sizes.slots + slot) * sizes.size + element;
    if constexpr (N == 1) {
      keys[target] = new_keys[i], values[target] = new_keys[elements + i];
    } else {
      using Stored = Vector<stored_t>;
      *reinterpret_cast<Stored*>(keys + target) = *reinterpret_cast<const Stored*>(new_keys + i);
      *reinterpret_cast<Stored*>(values + target) = *reinterpret_cast<const Stored*>(new_keys + elements + i);
    }
  }
}

// keys, values (B, K, S, D); qkv (B, T, (H + 2 K) D). One block per position; those behind a row's last are left out.
extern "C" __global__ void __launch_bounds__(256) append_positions(
    stored_t* keys, stored_t* values, const stored_t* qkv, CacheSizes sizes, RowPositions rows) {
  const index_t row = blockIdx.x / sizes.length, position = blockIdx.x % sizes.length;
  if (position >= rows.length[row]) return;
  const index_t slot = (rows.start[row] + position) % sizes.slots;
  const stored_t* const packed = qkv + blockIdx.x * sizes.width;
  if (sizes.size % VECTOR == 0 && is_aligned(qkv) && is_aligned(keys) && is_aligned(values))
    append_position<VECTOR>(keys, values, packed, slot, row, sizes);
  else append_position<1>(keys, values, packed, slot, row, sizes);
}

// The positions that a row's query sees, and how they are split: by their number alone, so that a row's result does not
// depend on the rows beside it, nor on the device.
struct Seen {
  index_t first, last, per_split;
};
__device__ __forceinline__ Seen seen_by(const RowPositions& rows, index_t row, const CacheSizes& sizes) {
  if (rows.length[row] == 0) return {0, 0, LEAST_SPLIT};
  const index_t last = rows.start[row] + 1, first = sizes.window > 0 ? max(0LL, last - sizes.window) : 0;
  const index_t share = (last - first + MOST_SPLITS - 1) / MOST_SPLITS;
  return {first, last, max(static_cast<index_t>(LEAST_SPLIT), (share + KEYS - 1) / KEYS * KEYS)};
}

struct Shared {
  float queries[HEADS][MOST_SIZE];  // scaled
  float weights[HEADS][KEYS];       // scores at first
  float rescale[HEADS], peak[HEADS], total[HEADS];
  float parts[THREADS * VECTOR];    // of the sums of one head
};

// body(head) for each of `heads` heads: in registers, whose numbers must be constants.
template <typename Body>
__device__ __forceinline__ void for_heads(int heads, Body body) {
#pragma unroll
  for (int head = 0; head < HEADS; head++)
    if (head < heads) body(head);
}

// Scores of `count` keys from slot `slot` on. Eight lanes read a key, vector by vector, and add up its score.
template <int N>
__device__ __forceinline__ void score_keys(
    Shared& shared, const stored_t* keys, index_t slot, int count, int heads, const CacheSizes& sizes) {
  const int lane = threadIdx.x % LANES;
#pragma unroll 1
  for (int low = 0; low < KEYS; low += KEYS_AT_ONCE) {
    const int key = low + threadIdx.x / LANES;
    float scores[HEADS] = {};
    if (key < count) {
      const index_t own = slot + key < sizes.slots ? slot + key : slot + key - sizes.slots;
      const stored_t* const address = keys + own * sizes.size;
#pragma unroll 2
      for (int d = lane * N; d < sizes.size; d += LANES * N) {
        float elements[N];
        load_some<N>(elements, address + d);
        for_heads(heads, [&](int head) {
#pragma unroll
          for (int i = 0; i < N; i++) scores[head] += shared.queries[head][d + i] * elements[i];
        });
      }
    }
    for_heads(heads, [&](int head) {
#pragma unroll
      for (int offset = LANES / 2; offset > 0; offset /= 2)
        scores[head] += __shfl_xor_sync(ALL_LANES, scores[head], offset);
      if (lane == 0) shared.weights[head][key] = key < count ? scores[head] : Maximum::neutral();
    });
  }
}

// The online softmax of one head, by one warp: scores become weights, and `rescale` what sums of before are to be
// multiplied with. Every step has a key, so the peak is not minus infinity unless a score is.
__device__ __forceinline__ void weigh(Shared& shared, int head, float& peak, float& total) {
  const int lane = threadIdx.x % WARP;
  float scores[KEYS / WARP], largest = peak, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < KEYS / WARP; i++) {
    scores[i] = shared.weights[head][lane + i * WARP];
    largest = Maximum::of(largest, scores[i]);
  }
  largest = warp_max(largest);
  const float base = largest == Maximum::neutral() ? 0.0f : largest;
#pragma unroll
  for (int i = 0; i < KEYS / WARP; i++) {
    const float weight = expf(scores[i] - base);
    shared.weights[head][lane + i * WARP] = weight;
    sum += weight;
  }
  const float rescale = expf(peak - base);
  total = total * rescale + warp_sum(sum);
  peak = largest;
  if (lane == 0) shared.rescale[head] = rescale, shared.peak[head] = peak, shared.total[head] = total;
}

// A thread sums N columns over every `parts`-th key: threads that follow each other read what lies together.
template <int N>
__device__ __forceinline__ void add_values(
    float (&sums)[HEADS][N], const Shared& shared, const stored_t* values, index_t slot, int count, int heads,
    int part, int parts, int column, const CacheSizes& sizes) {
  for_heads(heads, [&](int head) {
#pragma unroll
    for (int i = 0; i < N; i++) sums[head][i] *= shared.rescale[head];
  });
#pragma unroll 2
  for (int key = part; key < count; key += parts) {
    const index_t own = slot + key < sizes.slots ? slot + key : slot + key - sizes.slots;
    float elements[N];
    load_some<N>(elements, values + own * sizes.size + column);
    for_heads(heads, [&](int head) {
#pragma unroll
      for (int i = 0; i < N; i++) sums[head][i] += shared.weights[head][key] * elements[i];
    });
  }
}

// What a split leaves: with one split per row the result itself, else sums not yet divided, and peak and total of each.
struct Target {
  stored_t* output;   // (B, H D)
  float* sums;        // (B, H, splits, D)
  float* statistics;  // (B, H, splits, 2)
};

template <int N>
__device__ __forceinline__ void write_head(
    Shared& shared, const float (&sums)[N], const Target& target, int head, index_t pair, index_t split, int part,
    int parts, int column, const CacheSizes& sizes) {
  if (part < parts)
#pragma unroll
    for (int i = 0; i < N; i++) shared.parts[part * sizes.size + column + i] = sums[i];
  __syncthreads();
#pragma unroll 1
  for (int d = threadIdx.x; d < sizes.size; d += THREADS) {
    float sum = 0.0f;
#pragma unroll 1
    for (int other = 0; other < parts; other++) sum += shared.parts[other * sizes.size + d];
    if (target.sums == nullptr) store(target.output + pair * sizes.size + d, sum / shared.total[head]);
    else target.sums[(pair * sizes.splits + split) * sizes.size + d] = sum;
  }
  if (target.sums != nullptr && threadIdx.x == 0) {
    float* const statistics = target.statistics + (pair * sizes.splits + split) * 2;
    statistics[0] = shared.peak[head], statistics[1] = shared.total[head];
  }
  __syncthreads();
}

template <int N>
__device__ __forceinline__ void attend(
    Shared& shared, const Target& target, const stored_t* qkv, const stored_t* keys, const stored_t* values,
    const CacheSizes& sizes, const RowPositions& rows) {
  const index_t split = blockIdx.x % sizes.splits, pair = blockIdx.x / sizes.splits;
  const int key_head = pair % sizes.key_heads, group = sizes.heads / sizes.key_heads, warp = threadIdx.x / WARP;
  const index_t row = pair / sizes.key_heads, ring = (row * sizes.key_heads + key_head) * sizes.slots * sizes.size;
  const Seen seen = seen_by(rows, row, sizes);
  const index_t first = seen.first + split * seen.per_split, last = min(seen.last, first + seen.per_split);
  if (first >= last) {
    if (target.sums == nullptr)  // the row has no query
      for (int i = threadIdx.x; i < group * sizes.size; i += THREADS)
        store(target.output + (row * sizes.heads + key_head * group) * sizes.size + i, 0.0f);
    return;
  }
  const int columns = sizes.size / N, parts = THREADS / columns;
  const int part = threadIdx.x / columns, column = threadIdx.x % columns * N;
  for (int low = 0; low < group; low += HEADS) {
    const int heads = min(HEADS, group - low), first_head = key_head * group + low;
    const stored_t* const queries = qkv + row * sizes.width + first_head * sizes.size;
#pragma unroll 1
    for (int i = threadIdx.x; i < heads * sizes.size; i += THREADS)
      shared.queries[i / sizes.size][i % sizes.size] = sizes.scale * load(queries + i);
    float sums[HEADS][N] = {}, peak = Maximum::neutral(), total = 0.0f;
    for (index_t key = first; key < last; key += KEYS) {
      const int count = static_cast<int>(min(static_cast<index_t>(KEYS), last - key));
      const index_t slot = key % sizes.slots;
      __syncthreads();  // the queries are there, and everybody is through with the weights of before
      score_keys<N>(shared, keys + ring, slot, count, heads, sizes);
      __syncthreads();
      if (warp < heads) weigh(shared, warp, peak, total);
      __syncthreads();
      if (part < parts) add_values(sums, shared, values + ring, slot, count, heads, part, parts, column, sizes);
    }
#pragma unroll 1  // eight copies of what follows would take long to compile
    for (int head = 0; head < heads; head++) {
      float own[N] = {};
#pragma unroll
      for (int other = 0; other < HEADS; other++)
        if (other == head)
#pragma unroll
          for (int i = 0; i < N; i++) own[i] = sums[other][i];
      write_head(shared, own, target, head, row * sizes.heads + first_head + head, split, part, parts, column, sizes);
    }
  }
}

// qkv (B, 1, (H + 2 K) D). One block per split, key/value head and row; splits that a row does not need do nothing.
extern "C" __global__ void __launch_bounds__(256, 1) attention_decode(
    stored_t* output, float* sums, float* statistics, const stored_t* qkv, const stored_t* keys, const stored_t* values,
    CacheSizes sizes, RowPositions rows) {
  __shared__ Shared shared;
  const Target target = {output, sums, statistics};
  if (sizes.size % VECTOR == 0 && is_aligned(keys) && is_aligned(values))
    attend<VECTOR>(shared, target, qkv, keys, values, sizes, rows);
  else attend<1>(shared, target, qkv, keys, values, sizes, rows);
}

// output (B, H D) from what the splits left, in the order of the keys. One block per head and row.
extern "C" __global__ void __launch_bounds__(256) attention_merge(
    stored_t* output, const float* sums, const float* statistics, CacheSizes sizes, RowPositions rows) {
  const index_t pair = blockIdx.x;
  const Seen seen = seen_by(rows, pair / sizes.heads, sizes);
  const index_t splits = (seen.last - seen.first + seen.per_split - 1) / seen.per_split;
  const float* const own = statistics + pair * sizes.splits * 2;
  float peak = Maximum::neutral();
  for (index_t split = 0; split < splits; split++) peak = Maximum::of(peak, own[2 * split]);
  const float base = peak == Maximum::neutral() ? 0.0f : peak;
  for (int d = threadIdx.x; d < sizes.size; d += THREADS) {
    float sum = 0.0f, total = 0.0f;
    for (index_t split = 0; split < splits; split++) {
      const float factor = expf(own[2 * split] - base);
      sum += factor * sums[(pair * sizes.splits + split) * sizes.size + d];
      total += factor * own[2 * split + 1];
    }
    store(output + pair * sizes.size + d, splits == 0 ? 0.0f : sum / total);
  }
}
