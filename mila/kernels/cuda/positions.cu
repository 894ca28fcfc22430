// Learned positions. Row b of a batch starts at starts[b], or at `start` where starts is null.
#include "rows.cuh"

__device__ __forceinline__ index_t start_of(const index_t* starts, index_t start, index_t row) {
  return starts == nullptr ? start : starts[row];
}

// output, x (batch, length, columns): output[b, t] = x[b, t] + table[starts[b] + t]. A block for each (b, t).
template <int WIDTH, typename Table>
__device__ __forceinline__ void add_positions(
    stored_t* output, const stored_t* x, const Table* table, const index_t* starts, index_t start, index_t batch,
    index_t length, index_t columns) {
  float values[WIDTH], added[WIDTH];
  for (index_t row = blockIdx.x; row < batch * length; row += gridDim.x) {
    const index_t position = start_of(starts, start, row / length) + row % length;
    for (index_t i = threadIdx.x * WIDTH; i < columns; i += blockDim.x * WIDTH) {
      load_some<WIDTH>(values, x + row * columns + i);
      load_run<WIDTH>(added, table + position * columns + i);
      for (int k = 0; k < WIDTH; k++) values[k] += added[k];
      store_some<WIDTH>(output + row * columns + i, values);
    }
  }
}

template <typename Table>
__device__ __forceinline__ void choose_add_positions(
    stored_t* output, const stored_t* x, const Table* table, const index_t* starts, index_t start, index_t batch,
    index_t length, index_t columns) {
  if (columns % VECTOR == 0 && is_aligned(output) && is_aligned(x) && is_aligned(table))
    add_positions<VECTOR>(output, x, table, starts, start, batch, length, columns);
  else
    add_positions<1>(output, x, table, starts, start, batch, length, columns);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_stored(
    stored_t* output, const stored_t* x, const stored_t* table, const index_t* starts, index_t start, index_t batch,
    index_t length, index_t columns) {
  choose_add_positions(output, x, table, starts, start, batch, length, columns);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_bfloat16(
    stored_t* output, const stored_t* x, const __nv_bfloat16* table, const index_t* starts, index_t start,
    index_t batch, index_t length, index_t columns) {
  choose_add_positions(output, x, table, starts, start, batch, length, columns);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_float16(
    stored_t* output, const stored_t* x, const __half* table, const index_t* starts, index_t start, index_t batch,
    index_t length, index_t columns) {
  choose_add_positions(output, x, table, starts, start, batch, length, columns);
}

constexpr int ROWS_AT_ONCE = 4;  // rows of dy that a thread has under way

template <int WIDTH>
__device__ __forceinline__ void add_batch(
    stored_t* dtable, const stored_t* dy, const index_t* starts, index_t start, index_t batch, index_t length,
    index_t columns, index_t first, index_t positions, int accumulate) {
  for (index_t row = blockIdx.x; row < positions; row += gridDim.x) {
    for (index_t column = threadIdx.x * WIDTH; column < columns; column += blockDim.x * WIDTH) {
      stored_t* const target = dtable + (first + row) * columns + column;
      Run<stored_t, WIDTH> values[ROWS_AT_ONCE];
      float sums[WIDTH] = {};
      if (accumulate) load_some<WIDTH>(sums, target);
#pragma unroll 1
      for (index_t begin = 0; begin < batch; begin += ROWS_AT_ONCE) {
        bool is_there[ROWS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++) {
          const index_t b = begin + i, t = b < batch ? first + row - start_of(starts, start, b) : -1;
          is_there[i] = t >= 0 && t < length;
          if (is_there[i]) copy_run<WIDTH>(values[i].elements, dy + (b * length + t) * columns + column);
        }
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++)
          if (is_there[i])
            for (int k = 0; k < WIDTH; k++) sums[k] += load(&values[i].elements[k]);
      }
      store_some<WIDTH>(target, sums);
    }
  }
}

// dtable (positions, columns) (+)= the sum over b of dy[b, position - starts[b]], for `positions` positions from `first` on.
// A thread for each vector, or for each element where there are none, which adds in the order of the batch.
extern "C" __global__ void __launch_bounds__(256, 4) backward(
    stored_t* dtable, const stored_t* dy, const index_t* starts, index_t start, index_t batch, index_t length,
    index_t columns, index_t first, index_t positions, int accumulate) {
  if (columns % VECTOR == 0 && is_aligned(dtable) && is_aligned(dy))
    add_batch<VECTOR>(dtable, dy, starts, start, batch, length, columns, first, positions, accumulate);
  else
    add_batch<1>(dtable, dy, starts, start, batch, length, columns, first, positions, accumulate);
}

// output (batch, columns) = x (batch, length, columns) at t = lengths[b] - 1. Where output is x, a thread takes its column of one
// row after the other, so that none is overwritten before it is read; else the blocks along y share the rows.
extern "C" __global__ void __launch_bounds__(256, 4) gather_last(
    stored_t* output, const stored_t* x, const index_t* lengths, index_t last_length, index_t batch, index_t length,
    index_t columns) {
  const bool in_place = output == x;
  if (in_place && blockIdx.y > 0) return;
  for (index_t b = in_place ? 0 : blockIdx.y; b < batch; b += in_place ? 1 : gridDim.y) {
    const stored_t* source = x + (b * length + start_of(lengths, last_length, b) - 1) * columns;
    for (index_t column = thread_index(); column < columns; column += thread_count())
      output[b * columns + column] = source[column];
  }
}
