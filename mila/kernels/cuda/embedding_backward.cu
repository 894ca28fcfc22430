// The gradient of look-ups: dtable[ids] += scale * dy, equal ids in row order, each sum rounded once. No atomic additions: the
// block of the first row with an id finds all others with that id and adds them up, and the blocks of those do nothing.

constexpr int BACKWARD_BLOCK = 256;
constexpr int IDS_PER_THREAD = 4;
constexpr int TILE = BACKWARD_BLOCK * IDS_PER_THREAD;  // ids that a block looks at between two barriers
constexpr int BALLOTS = TILE / WARP;
constexpr int ROWS_AT_ONCE = 4;  // rows of dy that a thread has under way

// Whether any of the first `count` ids is `id`. All threads of the block take part and learn it.
template <typename Id>
__device__ __forceinline__ bool appears(const Id* ids, index_t count, Id id) {
  for (index_t start = 0; start < count; start += TILE) {
    bool found = false;
    for (int part = 0; part < IDS_PER_THREAD; part++) {
      const index_t row = start + part * BACKWARD_BLOCK + threadIdx.x;
      found |= row < count && ids[row] == id;
    }
    if (__syncthreads_or(found)) return true;
  }
  return false;
}

// Leaves in `matches` which of the TILE ids from `start` on are `id`, in order; returns how many. All threads take part.
template <typename Id>
__device__ __forceinline__ int find_matches(
    int* matches, unsigned* ballots, const Id* ids, index_t start, index_t count, Id id) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  bool found[IDS_PER_THREAD], any = false;
  for (int part = 0; part < IDS_PER_THREAD; part++) {
    const index_t row = start + part * BACKWARD_BLOCK + threadIdx.x;
    found[part] = row < count && ids[row] == id;
    any |= found[part];
  }
  if (!__syncthreads_or(any)) return 0;  // the barrier also says that the matches before these were read
  for (int part = 0; part < IDS_PER_THREAD; part++) {
    const unsigned ballot = __ballot_sync(ALL_LANES, found[part]);
    if (lane == 0) ballots[part * (BACKWARD_BLOCK / WARP) + warp] = ballot;
  }
  __syncthreads();
  int total = 0;
  for (int part = 0; part < IDS_PER_THREAD; part++)
#pragma unroll 1
    for (int other = 0; other < BACKWARD_BLOCK / WARP; other++) {
      const unsigned ballot = ballots[part * (BACKWARD_BLOCK / WARP) + other];
      if (other == warp && found[part])
        matches[total + __popc(ballot & ((1u << lane) - 1))] = part * BACKWARD_BLOCK + threadIdx.x;
      total += __popc(ballot);
    }
  __syncthreads();
  return total;
}

// Adds the matching rows of dy, `WIDTH` columns of each, in order.
template <int WIDTH>
__device__ __forceinline__ void add_rows(
    float* sums, const stored_t* dy, const int* matches, int total, index_t columns, float scale) {
  float values[ROWS_AT_ONCE][WIDTH];
#pragma unroll 1
  for (int match = 0; match < total; match += ROWS_AT_ONCE) {
    for (int i = 0; i < ROWS_AT_ONCE; i++)
      if (match + i < total) load_some<WIDTH>(values[i], dy + matches[match + i] * columns);
    for (int i = 0; i < ROWS_AT_ONCE; i++)
      if (match + i < total)
        for (int k = 0; k < WIDTH; k++) sums[k] += scale * values[i][k];
  }
}

template <int WIDTH, typename Table, typename Id>
__device__ __forceinline__ void add_up(
    Table* dtable, const stored_t* dy, const Id* ids, index_t count, index_t columns, float scale, int accumulate) {
  __shared__ int matches[TILE];
  __shared__ unsigned ballots[BALLOTS];
  for (index_t first = blockIdx.x; first < count; first += gridDim.x) {
    const Id id = ids[first];
    if (appears(ids, first, id)) continue;
    for (index_t base = 0; base < columns; base += BACKWARD_BLOCK * WIDTH) {
      const index_t column = base + threadIdx.x * WIDTH;
      float sums[WIDTH] = {};
      if (column < columns && accumulate)
        for (int k = 0; k < WIDTH; k++) sums[k] = load(dtable + id * columns + column + k);
      for (index_t start = first; start < count; start += TILE) {
        const int total = find_matches(matches, ballots, ids, start, count, id);
        if (column < columns) add_rows<WIDTH>(sums, dy + start * columns + column, matches, total, columns, scale);
      }
      if (column < columns)
        for (int k = 0; k < WIDTH; k++) store(dtable + id * columns + column + k, sums[k]);
    }
  }
}

template <typename Table, typename Id>
__device__ __forceinline__ void choose_add_up(
    Table* dtable, const stored_t* dy, const Id* ids, index_t count, index_t columns, float scale, int accumulate) {
  if (columns % VECTOR == 0 && is_aligned(dy))
    add_up<VECTOR>(dtable, dy, ids, count, columns, scale, accumulate);
  else
    add_up<1>(dtable, dy, ids, count, columns, scale, accumulate);
}

// dtable (V, columns), dy (count, columns), ids (count,): a block for each id. Without accumulate, rows of dtable that no id
// names are left alone: they were cleared before.
extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_stored_int32(
    stored_t* dtable, const stored_t* dy, const int* ids, index_t count, index_t columns, float scale, int accumulate) {
  choose_add_up(dtable, dy, ids, count, columns, scale, accumulate);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_stored_int64(
    stored_t* dtable, const stored_t* dy, const index_t* ids, index_t count, index_t columns, float scale,
    int accumulate) {
  choose_add_up(dtable, dy, ids, count, columns, scale, accumulate);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_bfloat16_int32(
    __nv_bfloat16* dtable, const stored_t* dy, const int* ids, index_t count, index_t columns, float scale,
    int accumulate) {
  choose_add_up(dtable, dy, ids, count, columns, scale, accumulate);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_bfloat16_int64(
    __nv_bfloat16* dtable, const stored_t* dy, const index_t* ids, index_t count, index_t columns, float scale,
    int accumulate) {
  choose_add_up(dtable, dy, ids, count, columns, scale, accumulate);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_float16_int32(
    __half* dtable, const stored_t* dy, const int* ids, index_t count, index_t columns, float scale, int accumulate) {
  choose_add_up(dtable, dy, ids, count, columns, scale, accumulate);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_float16_int64(
    __half* dtable, const stored_t* dy, const index_t* ids, index_t count, index_t columns, float scale,
    int accumulate) {
  choose_add_up(dtable, dy, ids, count, columns, scale, accumulate);
}

// 0 in every byte of an array of any dtype.
extern "C" __global__ void __launch_bounds__(256, 4) clear(unsigned char* bytes, index_t count) {
  const index_t vectors = is_aligned(bytes) ? count / 16 : 0;
  for (index_t i = thread_index(); i < vectors; i += thread_count())
    reinterpret_cast<uint4*>(bytes)[i] = make_uint4(0, 0, 0, 0);
  for (index_t i = vectors * 16 + thread_index(); i < count; i += thread_count()) bytes[i] = 0;
}
