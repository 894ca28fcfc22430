// Gathering and pooling the positions of a sequence.
#include "rows.cuh"

// ---- the first of the largest ids, or of one id ---------------------------------------------------------------------
// A candidate is better if it is larger, or as large and earlier. Lanes without ids have the position T, which never
// wins.
template <typename Id>
__device__ __forceinline__ void keep_better(
    Id& id, index_t& position, Id other, index_t other_position, index_t length) {
  if (other_position < length && (position >= length || other > id || (other == id && other_position < position))) {
    id = other;
    position = other_position;
  }
}

// The position of the first largest of ids (length,), in every lane of a warp. Where an id is sought, the largest of
// marks instead: 1 where it stands and 0 elsewhere, so that it is the first position of the id, and 0 where there is
// none.
template <typename Id>
__device__ __forceinline__ index_t first_position(
    const Id* ids, index_t length, index_t token_id, int is_sought, int lane) {
  Id id = 0;
  index_t position = length;
#pragma unroll 1
  for (index_t i = lane; i < length; i += WARP) {
    const Id own = is_sought ? static_cast<Id>(static_cast<index_t>(ids[i]) == token_id) : ids[i];
    keep_better(id, position, own, i, length);
  }
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) {
    const Id other = __shfl_xor_sync(ALL_LANES, id, offset);
    const index_t other_position = __shfl_xor_sync(ALL_LANES, position, offset);
    keep_better(id, position, other, other_position, length);
  }
  return position;
}

// output (batch, width) = x (batch, length, width) at that position of ids (batch, length). A warp for every row, in
// blocks of 8.
template <typename Id>
__device__ __forceinline__ void gather(
    stored_t* output, const stored_t* x, const Id* ids, index_t batch, index_t length, index_t width,
    index_t token_id, int is_sought) {
  const int lane = threadIdx.x % WARP;
  for (index_t row = thread_index() / WARP; row < batch; row += thread_count() / WARP) {
    const index_t position = first_position(ids + row * length, length, token_id, is_sought, lane);
    const stored_t* const source = x + (row * length + position) * width;
    for (index_t i = lane; i < width; i += WARP) output[row * width + i] = source[i];
  }
}

extern "C" __global__ void gather_token_i32(
    stored_t* output, const stored_t* x, const int* ids, index_t batch, index_t length, index_t width,
    index_t token_id, int is_sought) {
  gather(output, x, ids, batch, length, width, token_id, is_sought);
}
extern "C" __global__ void gather_token_i64(
    stored_t* output, const stored_t* x, const long long* ids, index_t batch, index_t length, index_t width,
    index_t token_id, int is_sought) {
  gather(output, x, ids, batch, length, width, token_id, is_sought);
}

// dx (batch, length, width), already zero, takes dy (batch, width) at that position. As above.
template <typename Id>
__device__ __forceinline__ void scatter(
    stored_t* dx, const stored_t* dy, const Id* ids, index_t batch, index_t length, index_t width,
    index_t token_id, int is_sought) {
  const int lane = threadIdx.x % WARP;
  for (index_t row = thread_index() / WARP; row < batch; row += thread_count() / WARP) {
    const index_t position = first_position(ids + row * length, length, token_id, is_sought, lane);
    stored_t* const target = dx + (row * length + position) * width;
    for (index_t i = lane; i < width; i += WARP) target[i] = dy[row * width + i];
  }
}

extern "C" __global__ void scatter_token_i32(
    stored_t* dx, const stored_t* dy, const int* ids, index_t batch, index_t length, index_t width,
    index_t token_id, int is_sought) {
  scatter(dx, dy, ids, batch, length, width, token_id, is_sought);
}
extern "C" __global__ void scatter_token_i64(
    stored_t* dx, const stored_t* dy, const long long* ids, index_t batch, index_t length, index_t width,
    index_t token_id, int is_sought) {
  scatter(dx, dy, ids, batch, length, width, token_id, is_sought);
}

// ---- the largest value of every feature -----------------------------------------------------------------------------
constexpr int WARPS = 8;  // of a block

// Whether a value replaces the largest one so far: NaN counts as largest, and what is equal must be earlier.
__device__ __forceinline__ bool replaces(float value, int position, float largest, int largest_position) {
  const bool is_nan = value != value, largest_is_nan = largest != largest;
  if (is_nan != largest_is_nan) return is_nan;
  if (is_nan || value == largest) return position < largest_position;
  return value > largest;
}

// output (batch, width), positions (batch, width) or null, x (batch, length, width) with at least one position. Blocks
// of 8 warps for 32 features of a row: (tiles of features, rows). A lane looks at every eighth position; the warps'
// findings meet in shared memory.
extern "C" __global__ void __launch_bounds__(256) pool_maximum_forward(
    stored_t* output, int* positions, const stored_t* x, index_t batch, index_t length, index_t width) {
  __shared__ float values[WARPS][WARP];
  __shared__ int places[WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const index_t feature = static_cast<index_t>(blockIdx.x) * WARP + lane;
  for (index_t row = blockIdx.y; row < batch; row += gridDim.y) {
    const int first = warp < length ? warp : 0;  // with fewer positions than warps the first is looked at again
    float largest = 0.0f;
    int place = first;
    if (feature < width) {
      const stored_t* const source = x + row * length * width + feature;
      largest = load(source + first * width);
      for (index_t position = first + WARPS; position < length; position += WARPS) {
        const float value = load(source + position * width);
        if (replaces(value, static_cast<int>(position), largest, place)) {
          largest = value;
          place = static_cast<int>(position);
        }
      }
    }
    values[warp][lane] = largest;
    places[warp][lane] = place;
    __syncthreads();
    if (warp == 0 && feature < width) {
      for (int other = 1; other < WARPS; other++) {
        if (replaces(values[other][lane], places[other][lane], largest, place)) {
          largest = values[other][lane];
          place = places[other][lane];
        }
      }
      store(output + row * width + feature, largest);
      if (positions) positions[row * width + feature] = place;
    }
    __syncthreads();  // nobody writes before these were read
  }
}

// dx (rows = batch length, width) = dy (batch, width) where positions (batch, width) say so, else 0. Grid and block as
// rows.cuh says.
extern "C" __global__ void pool_maximum_backward(
    stored_t* dx, const stored_t* dy, const int* positions, index_t rows, index_t length, index_t width) {
  for_rows(rows, width, false, [=](index_t row) {
    const index_t batch_row = row / length, position = row % length;
    const stored_t* const gradients = dy + batch_row * width;
    const int* const chosen = positions + batch_row * width;
    return [=](index_t feature, auto) {
      store(dx + row * width + feature, chosen[feature] == position ? load(gradients + feature) : 0.0f);
    };
  });
}
