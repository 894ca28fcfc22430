// The gradient of look-ups in any order: dtable[ids] += scale * dy by atomic additions, so that sums differ from call to call
// by their roundings. The only file with atomic additions of floats; it is used where the user said that results need not
// repeat. dtable is float32: in a narrower one every addition would be rounded to it.

template <int WIDTH>
__device__ __forceinline__ void add_row(float* target, const stored_t* source, float scale, index_t columns) {
  float values[WIDTH];
  for (index_t i = threadIdx.x * WIDTH; i < columns; i += blockDim.x * WIDTH) {
    load_some<WIDTH>(values, source + i);
#pragma unroll
    for (int k = 0; k < WIDTH; k++) atomicAdd(target + i + k, scale * values[k]);
  }
}

// dtable (V, columns), dy (count, columns), ids (count,). A block for each row; the grid may be smaller.
template <typename Id>
__device__ __forceinline__ void add_rows(
    float* dtable, const stored_t* dy, const Id* ids, index_t count, index_t columns, float scale) {
  const bool vectors = columns % VECTOR == 0 && is_aligned(dy);
  for (index_t row = blockIdx.x; row < count; row += gridDim.x) {
    float* const target = dtable + static_cast<index_t>(ids[row]) * columns;
    const stored_t* const source = dy + row * columns;
    if (vectors)
      add_row<VECTOR>(target, source, scale, columns);
    else
      add_row<1>(target, source, scale, columns);
  }
}

extern "C" __global__ void __launch_bounds__(256, 4) add_rows_int32(
    float* dtable, const stored_t* dy, const int* ids, index_t count, index_t columns, float scale) {
  add_rows(dtable, dy, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) add_rows_int64(
    float* dtable, const stored_t* dy, const index_t* ids, index_t count, index_t columns, float scale) {
  add_rows(dtable, dy, ids, count, columns, scale);
}
