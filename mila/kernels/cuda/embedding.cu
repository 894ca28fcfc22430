// Look-ups in tables of tokens.
#include "float8.cuh"
#include "rows.cuh"

template <int WIDTH, typename Table>
__device__ __forceinline__ void look_up_row(stored_t* output, const Table* row, float factor, float scale, index_t columns) {
  float values[WIDTH];
  for (index_t i = threadIdx.x * WIDTH; i < columns; i += blockDim.x * WIDTH) {
    load_run<WIDTH>(values, row + i);
    for (int k = 0; k < WIDTH; k++) values[k] = values[k] * factor * scale;
    store_some<WIDTH>(output + i, values);
  }
}

// output (count, columns) = table[ids] * scales[ids] * scale; scales (V,) may be null. A block for each row.
template <typename Table, typename Id>
__device__ __forceinline__ void look_up(
    stored_t* output, const Table* table, const float* scales, const Id* ids, index_t count, index_t columns,
    float scale) {
  const bool vectors = columns % VECTOR == 0 && is_aligned(output) && is_aligned(table);
  for (index_t row = blockIdx.x; row < count; row += gridDim.x) {
    const index_t id = ids[row];
    const float factor = scales == nullptr ? 1.0f : scales[id];
    if (vectors)
      look_up_row<VECTOR>(output + row * columns, table + id * columns, factor, scale, columns);
    else
      look_up_row<1>(output + row * columns, table + id * columns, factor, scale, columns);
  }
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_stored_int32(
    stored_t* output, const stored_t* table, const float* scales, const int* ids, index_t count, index_t columns,
    float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_stored_int64(
    stored_t* output, const stored_t* table, const float* scales, const index_t* ids, index_t count, index_t columns,
    float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_float8_int32(
    stored_t* output, const float8_t* table, const float* scales, const int* ids, index_t count, index_t columns,
    float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_float8_int64(
    stored_t* output, const float8_t* table, const float* scales, const index_t* ids, index_t count, index_t columns,
    float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_bfloat16_int32(
    stored_t* output, const __nv_bfloat16* table, const float* scales, const int* ids, index_t count, index_t columns,
    float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_bfloat16_int64(
    stored_t* output, const __nv_bfloat16* table, const float* scales, const index_t* ids, index_t count,
    index_t columns, float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_float16_int32(
    stored_t* output, const __half* table, const float* scales, const int* ids, index_t count, index_t columns,
    float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}

extern "C" __global__ void __launch_bounds__(256, 4) forward_float16_int64(
    stored_t* output, const __half* table, const float* scales, const index_t* ids, index_t count, index_t columns,
    float scale) {
  look_up(output, table, scales, ids, count, columns, scale);
}
