// The gradient of look-ups: dtable[ids] += scale * dy, equal ids in row order, each sum rounded once, without atomic additions.
//
// First the ids are sorted, each with its row: a key is an id, shifted by row_bits, and the row that has it. No two keys are
// equal, so there is one order however it is found, and in it equal ids are in row order. Then every row of the table is
// written once, by those who find its keys together.
#include "rows.cuh"

constexpr int BACKWARD_BLOCK = 256;
constexpr int WARPS = BACKWARD_BLOCK / WARP;
constexpr int TILE = BACKWARD_BLOCK;  // keys that a block sorts: one for each thread
constexpr int RUNS = 8;               // sorted runs of which merge makes one
constexpr index_t LARGEST = 0x7fffffffffffffffll;

constexpr int TABLE_ROWS = 64;   // most rows of the table that a block works on between two barriers
constexpr int ROWS_AT_ONCE = 4;  // rows of dy that a warp has under way
constexpr int LONG_RUN = 32;     // equal ids above which all warps of a block load dy for one row of the table
constexpr int STAGED = 32;       // rows of dy that they load at once

// ---- sorting ---------------------------------------------------------------------------------------------------------
// Leaves the keys of TILE ids each in order. Every thread counts how many of the tile's keys are below its own.
template <typename Id>
__device__ __forceinline__ void sort_tiles(index_t* keys, const Id* ids, index_t count, int row_bits) {
  __shared__ index_t tile[TILE];
  for (index_t start = blockIdx.x * TILE; start < count; start += gridDim.x * TILE) {
    const index_t row = start + threadIdx.x;
    const index_t key = row < count ? static_cast<index_t>(ids[row]) << row_bits | row : LARGEST;
    __syncthreads();  // the keys before these were counted
    tile[threadIdx.x] = key;
    __syncthreads();
    int below = 0;
#pragma unroll 8
    for (int other = 0; other < TILE; other++) below += tile[other] < key;
    if (row < count) keys[start + below] = key;
  }
}

// keys (count,) of ids (count,), in runs of TILE. A block for each run; the grid may be smaller.
extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 4) sort_int32(
    index_t* keys, const int* ids, index_t count, int row_bits) {
  sort_tiles(keys, ids, count, row_bits);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 4) sort_int64(
    index_t* keys, const index_t* ids, index_t count, int row_bits) {
  sort_tiles(keys, ids, count, row_bits);
}

// Where the first of the sorted keys from `low` to `high` is that is not below a key.
__device__ __forceinline__ index_t place_of(const index_t* keys, index_t low, index_t high, index_t key) {
  while (low < high) {
    const index_t middle = low + (high - low) / 2;
    if (keys[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// merged, keys (count,): of RUNS runs of `run` sorted keys each, one. A thread for each key, which goes to the place that is as
// far on as there are keys below it in all of the runs.
extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 4) merge(
    index_t* merged, const index_t* keys, index_t count, index_t run) {
  for (index_t i = thread_index(); i < count; i += thread_count()) {
    const index_t key = keys[i], first = i - i % (RUNS * run), last = min(count, first + RUNS * run);
    index_t place = first;
#pragma unroll 1
    for (index_t start = first; start < last; start += run)
      place += place_of(keys, start, min(last, start + run), key) - start;
    merged[place] = key;
  }
}

// ---- adding up -------------------------------------------------------------------------------------------------------
// How many of the sorted keys are below a limit, in every lane of a warp, which looks at 32 places at a time.
__device__ __forceinline__ index_t count_below(const index_t* keys, index_t count, index_t limit, int lane) {
  index_t low = 0, high = count;
  while (low < high) {
    const index_t step = (high - low + WARP - 1) / WARP, place = low + (lane + 1) * step - 1;
    const int whole = __popc(__ballot_sync(ALL_LANES, place < high && keys[place] < limit));
    low += whole * step;
    high = min(high, low + step - 1);
  }
  return low;
}

// The keys of the rows of the table that a block works on: those of row i are from starts[i] to starts[i + 1].
struct Places {
  index_t starts[TABLE_ROWS + 1];

  __device__ __forceinline__ bool is_long(int row) const { return starts[row + 1] - starts[row] > LONG_RUN; }

  // By all threads of the block, for `rows` rows from `first` on.
  __device__ __forceinline__ void find(const index_t* keys, index_t count, index_t first, int rows, int row_bits) {
    __shared__ index_t bounds[2];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads();  // the rows before these were added up
    if (warp < 2) {
      const index_t bound = count_below(keys, count, (first + warp * rows) << row_bits, lane);
      if (lane == 0) bounds[warp] = bound;
    }
    __syncthreads();
    const index_t begin = bounds[0], end = bounds[1];
    for (index_t place = begin + threadIdx.x; place <= end; place += blockDim.x) {
      const index_t before = place == begin ? first - 1 : keys[place - 1] >> row_bits;
      const index_t id = place == end ? first + rows : keys[place] >> row_bits;
      for (index_t row = before + 1; row <= id; row++) starts[row - first] = place;
    }
    __syncthreads();
  }
};

// What is added: columns of rows of dy (count, columns), by the places of their keys.
struct Upstream {
  const stored_t* dy;
  const index_t* keys;
  index_t columns;
  int row_bits;
  float scale;

  __device__ __forceinline__ index_t id(index_t place) const { return keys[place] >> row_bits; }
  __device__ __forceinline__ const stored_t* row(index_t place) const {
    return dy + (keys[place] & ((1ll << row_bits) - 1)) * columns;
  }
  // The same from a column on.
  __device__ __forceinline__ Upstream from(index_t column) const { return {dy + column, keys, columns, row_bits, scale}; }
};

// Rows `row` to `last` of the table, none of which has many keys: a warp adds up WIDTH columns in each lane, from key to key, and
// has ROWS_AT_ONCE rows of dy under way whether or not they belong together. dtable is where the block's rows begin.
template <int WIDTH, typename Table>
__device__ __forceinline__ void add_short_runs(
    Table* dtable, const Upstream& upstream, const Places& places, int row, int last, index_t first, int accumulate) {
  float sums[WIDTH] = {};
  Run<stored_t, WIDTH> values[ROWS_AT_ONCE];
#pragma unroll 1
  for (int other = row; other < last && !accumulate; other++)
    if (places.starts[other] == places.starts[other + 1]) store_run<WIDTH>(dtable + other * upstream.columns, sums);
  const index_t stop = places.starts[last];
  for (index_t place = places.starts[row]; place < stop; place += ROWS_AT_ONCE) {
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; i++)
      if (place + i < stop) copy_run<WIDTH>(values[i].elements, upstream.row(place + i));
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
      if (place + i >= stop) continue;
      const int own = static_cast<int>(upstream.id(place + i) - first);
      Table* const target = dtable + own * upstream.columns;
      if (place + i == places.starts[own]) {
        if (accumulate)
          load_run<WIDTH>(sums, target);
        else
          for (int k = 0; k < WIDTH; k++) sums[k] = 0.0f;
      }
      for (int k = 0; k < WIDTH; k++) sums[k] += upstream.scale * load(&values[i].elements[k]);
      if (place + i + 1 == places.starts[own + 1]) store_run<WIDTH>(target, sums);
    }
  }
}

// One row of the table with many keys, by all threads of the block: the warps load rows of dy into shared memory, and then each
// thread adds up one column from `first` on.
template <int WIDTH, typename Table>
__device__ __forceinline__ void add_long_run(
    Table* target, const Upstream& upstream, index_t start, index_t stop, index_t first, int accumulate,
    stored_t* staged) {
  constexpr int SPAN = WARP * WIDTH;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const index_t column = first + lane * WIDTH, own = first + threadIdx.x;
  const bool adds = threadIdx.x < SPAN && own < upstream.columns;
  float sum = adds && accumulate ? load(target + own) : 0.0f;
  for (index_t place = start; place < stop; place += STAGED) {
    __syncthreads();  // the rows before these were added
    if (column < upstream.columns) {
      Run<stored_t, WIDTH> loaded[STAGED / WARPS] = {};
#pragma unroll
      for (int i = 0; i < STAGED / WARPS; i++)
        if (place + i * WARPS + warp < stop)
          copy_run<WIDTH>(loaded[i].elements, upstream.row(place + i * WARPS + warp) + column);
#pragma unroll
      for (int i = 0; i < STAGED / WARPS; i++)
        copy_run<WIDTH>(staged + (i * WARPS + warp) * SPAN + lane * WIDTH, loaded[i].elements);
    }
    __syncthreads();
    if (!adds) continue;
    const int present = static_cast<int>(min(stop - place, static_cast<index_t>(STAGED)));
#pragma unroll 4
    for (int row = 0; row < present; row++) sum += upstream.scale * load(staged + row * SPAN + threadIdx.x);
  }
  if (adds) store(target + own, sum);
}

// Rows of the table from `first` on, for the columns from `base` on that are the block's.
template <int WIDTH, typename Table>
__device__ __forceinline__ void add_rows(
    Table* dtable, const Upstream& upstream, const Places& places, int rows, index_t first, index_t base,
    int accumulate, stored_t* staged) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int share = (rows + WARPS - 1) / WARPS, last = min(rows, (warp + 1) * share);
  const index_t column = base + lane * WIDTH;
  int row = column < upstream.columns ? warp * share : last;
  while (row < last) {
    int end = row;
    while (end < last && !places.is_long(end)) end++;
    add_short_runs<WIDTH>(dtable + column, upstream.from(column), places, row, end, first, accumulate);
    row = end + 1;
  }
  for (row = 0; row < rows; row++)
    if (places.is_long(row))
      add_long_run<WIDTH>(dtable + row * upstream.columns, upstream, places.starts[row], places.starts[row + 1], base,
                          accumulate, staged);
}

template <int WIDTH, typename Table>
__device__ __forceinline__ void add_up(
    Table* dtable, const Upstream& upstream, index_t count, index_t table_rows, int rows_per_block, int accumulate,
    stored_t* staged) {
  constexpr int SPAN = WARP * WIDTH;
  __shared__ Places places;
  const index_t columns = upstream.columns;
  // The grid is no larger than what runs at once, so that 32 bits hold where a block begins.
  for (index_t first = blockIdx.x * rows_per_block; first < table_rows; first += gridDim.x * rows_per_block) {
    const int rows = static_cast<int>(min(table_rows - first, static_cast<index_t>(rows_per_block)));
    places.find(upstream.keys, count, first, rows, upstream.row_bits);
    for (index_t base = blockIdx.y * SPAN; base < columns; base += gridDim.y * SPAN)
      add_rows<WIDTH>(dtable + first * columns, upstream, places, rows, first, base, accumulate, staged);
  }
}

template <typename Table>
__device__ __forceinline__ void choose_add_up(
    Table* dtable, const Upstream& upstream, index_t count, index_t table_rows, int rows_per_block, int accumulate) {
  __shared__ Vector<stored_t> staged[STAGED * WARP];
  if (upstream.columns % VECTOR == 0 && is_aligned(upstream.dy) && is_aligned(dtable))
    add_up<VECTOR>(dtable, upstream, count, table_rows, rows_per_block, accumulate, staged[0].elements);
  else
    add_up<1>(dtable, upstream, count, table_rows, rows_per_block, accumulate, staged[0].elements);
}

// dtable (table_rows, columns), dy (count, columns), sorted keys (count,). Blocks: (rows_per_block rows of the table, at most
// TABLE_ROWS; 32 vectors of columns, or 32 columns where there are none); the grid may be smaller. Without accumulate, rows of
// dtable that no id names become 0.
extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_stored(
    stored_t* dtable, const stored_t* dy, const index_t* keys, index_t count, index_t table_rows, index_t columns,
    int rows_per_block, int row_bits, float scale, int accumulate) {
  choose_add_up(dtable, {dy, keys, columns, row_bits, scale}, count, table_rows, rows_per_block, accumulate);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_bfloat16(
    __nv_bfloat16* dtable, const stored_t* dy, const index_t* keys, index_t count, index_t table_rows, index_t columns,
    int rows_per_block, int row_bits, float scale, int accumulate) {
  choose_add_up(dtable, {dy, keys, columns, row_bits, scale}, count, table_rows, rows_per_block, accumulate);
}

extern "C" __global__ void __launch_bounds__(BACKWARD_BLOCK, 3) backward_float16(
    __half* dtable, const stored_t* dy, const index_t* keys, index_t count, index_t table_rows, index_t columns,
    int rows_per_block, int row_bits, float scale, int accumulate) {
  choose_add_up(dtable, {dy, keys, columns, row_bits, scale}, count, table_rows, rows_per_block, accumulate);
}
