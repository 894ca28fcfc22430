// Permutations and padding. Values are only moved, but for the sums of pad_backward.
#include "axes.cuh"
#include "rows.cuh"

// output (rows, columns): rows of x that lie together, in another order. Grid and block as rows.cuh says.
extern "C" __global__ void permute_rows(
    stored_t* output, const stored_t* x, Axes x_rows, index_t rows, index_t columns) {
  const bool by_vectors = columns % VECTOR == 0 && is_aligned(output) && is_aligned(x);
  for_rows(rows, columns, by_vectors, [&](index_t row) {
    const stored_t* const source = x + offset_of(x_rows, row);
    stored_t* const target = output + row * columns;
    return [=](index_t column, auto width) { copy_run<decltype(width)::N>(target + column, source + column); };
  });
}

// Matrices (rows, columns) of x, whose columns lie together, transposed. Axes say where each matrix begins; a pitch is
// the distance of a row from the next, in output of a column. Blocks of 8 warps for tiles of 32 x 32 elements, which go
// through shared memory so that both reading and writing are of neighbours.
extern "C" __global__ void __launch_bounds__(256) permute_tiles(
    stored_t* output, const stored_t* x, Axes output_matrices, Axes x_matrices, index_t matrices, index_t rows,
    index_t columns, index_t output_pitch, index_t x_pitch) {
  __shared__ float tile[WARP][WARP + 1];  // a column more: the lanes of a warp then read from different banks
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const index_t across = (columns + WARP - 1) / WARP, down = (rows + WARP - 1) / WARP;
  for (index_t number = blockIdx.x; number < matrices * across * down; number += gridDim.x) {
    index_t matrix = number;
    const index_t column = divide(matrix, across) * WARP, row = divide(matrix, down) * WARP;
    const stored_t* const source = x + offset_of(x_matrices, matrix);
    stored_t* const target = output + offset_of(output_matrices, matrix);
    for (int i = warp; i < WARP; i += warps)
      if (row + i < rows && column + lane < columns) tile[i][lane] = load(source + (row + i) * x_pitch + column + lane);
    __syncthreads();
    for (int i = warp; i < WARP; i += warps)
      if (column + i < columns && row + lane < rows)
        store(target + (column + i) * output_pitch + row + lane, tile[lane][i]);
    __syncthreads();  // nobody reads the next tile before this one was written
  }
}

// ---- padding: x or dx has `extents`, the padded array `before` and `after` more along every axis --------------------
struct Pads {
  index_t extents[MOST_AXES];
  index_t before[MOST_AXES];
  index_t after[MOST_AXES];
  index_t count;
};

enum Mode { CONSTANT, REFLECT, REPLICATE };  // the order of _MODES in shapes.py

// The coordinate that a place of a padded axis holds, or -1 for a new value.
__device__ __forceinline__ index_t held_coordinate(index_t place, index_t extent, index_t before, int mode) {
  const index_t coordinate = place - before;
  if (coordinate >= 0 && coordinate < extent) return coordinate;
  if (mode == CONSTANT) return -1;
  if (mode == REFLECT) return coordinate < 0 ? -coordinate : 2 * (extent - 1) - coordinate;
  return coordinate < 0 ? 0 : extent - 1;
}

// output (size,): each element in turn, from the last axis on.
extern "C" __global__ void pad_forward(
    stored_t* output, const stored_t* x, Pads pads, index_t size, int mode, float value) {
  for (index_t index = thread_index(); index < size; index += thread_count()) {
    index_t rest = index, source = 0, stride = 1;
    bool is_new = false;
    for (int axis = static_cast<int>(pads.count) - 1; axis >= 0; axis--) {
      const index_t extent = pads.extents[axis];
      const index_t place = divide(rest, pads.before[axis] + extent + pads.after[axis]);
      const index_t coordinate = held_coordinate(place, extent, pads.before[axis], mode);
      is_new |= coordinate < 0;
      source += coordinate * stride;
      stride *= extent;
    }
    store(output + index, is_new ? value : load(x + source));
  }
}

// The places of a padded axis that hold a coordinate: its own, then those before, then those after.
struct Places {
  index_t own, before, first_before, after, first_after;
  __device__ index_t count() const { return 1 + before + after; }
  __device__ index_t place(index_t number) const {
    if (number == 0) return own;
    return number <= before ? first_before + number - 1 : first_after + number - 1 - before;
  }
};

__device__ __forceinline__ Places places_of(
    index_t coordinate, index_t extent, index_t before, index_t after, int mode) {
  Places places = {before + coordinate, 0, 0, 0, 0};
  if (mode == REFLECT) {
    places.before = coordinate >= 1 && coordinate <= before;
    places.first_before = before - coordinate;
    places.after = coordinate <= extent - 2 && coordinate >= extent - 1 - after;
    places.first_after = before + 2 * (extent - 1) - coordinate;
  } else if (mode == REPLICATE) {
    places.before = coordinate == 0 ? before : 0;
    places.after = coordinate == extent - 1 ? after : 0;
    places.first_after = before + extent;
  }
  return places;
}

// dx (size,): each element in turn adds up dy in the places that hold it, always in the same order.
extern "C" __global__ void pad_backward(stored_t* dx, const stored_t* dy, Pads pads, index_t size, int mode) {
  for (index_t index = thread_index(); index < size; index += thread_count()) {
    float sum = 0.0f;
    index_t combinations = 1;
    for (index_t combination = 0; combination < combinations; combination++) {
      index_t rest = index, number = combination, source = 0, stride = 1, all = 1;
      for (int axis = static_cast<int>(pads.count) - 1; axis >= 0; axis--) {
        const index_t extent = pads.extents[axis], before = pads.before[axis], after = pads.after[axis];
        const Places places = places_of(divide(rest, extent), extent, before, after, mode);
        source += places.place(divide(number, places.count())) * stride;
        stride *= before + extent + after;
        all *= places.count();
      }
      combinations = all;
      sum += load(dy + source);
    }
    store(dx + index, sum);
  }
}
