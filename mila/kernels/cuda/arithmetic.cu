// Arithmetic in which arrays differ in shape. Grid and block as rows.cuh says.
#include "axes.cuh"
#include "rows.cuh"

// N values of a row that steps through memory, or one value N times.
template <int N>
__device__ __forceinline__ void load_stretched(float (&values)[N], const stored_t* row, index_t column, int steps) {
  if (steps) return load_run(values, row + column);
  const float value = load(row);
#pragma unroll
  for (int i = 0; i < N; i++) values[i] = value;
}

// output (rows, columns) = a + b. Rows of a and b stand where their axes say; each has `columns` elements or, where it
// does not step, one that stretches. output may be whichever has its shape.
extern "C" __global__ void broadcast_add(
    stored_t* output, const stored_t* a, const stored_t* b, Axes a_rows, Axes b_rows, index_t rows, index_t columns,
    int a_steps, int b_steps) {
  const bool by_vectors = columns % VECTOR == 0 && is_aligned(output) && is_aligned(a) && is_aligned(b);
  for_rows(rows, columns, by_vectors, [&](index_t row) {
    const stored_t *const left_row = a + offset_of(a_rows, row), *const right_row = b + offset_of(b_rows, row);
    stored_t* const target = output + row * columns;
    return [=](index_t column, auto width) {
      constexpr int N = decltype(width)::N;
      float left[N], right[N];
      load_stretched(left, left_row, column, a_steps);
      load_stretched(right, right_row, column, b_steps);
#pragma unroll
      for (int i = 0; i < N; i++) left[i] += right[i];
      store_run(target + column, left);
    };
  });
}

// dx (rows, columns) = factor * dy, `repeats` rows in turn from each row of dy, which has `columns` elements or one
// that stretches.
extern "C" __global__ void spread(
    stored_t* dx, const stored_t* dy, index_t rows, index_t columns, index_t repeats, int steps, float factor) {
  const bool by_vectors = columns % VECTOR == 0 && is_aligned(dx) && is_aligned(dy);
  for_rows(rows, columns, by_vectors, [=](index_t row) {
    index_t source_row = row;
    divide(source_row, repeats);
    const stored_t* const source = dy + source_row * (steps ? columns : 1);
    stored_t* const target = dx + row * columns;
    return [=](index_t column, auto width) {
      constexpr int N = decltype(width)::N;
      float values[N];
      load_stretched(values, source, column, steps);
#pragma unroll
      for (int i = 0; i < N; i++) values[i] *= factor;
      store_run(target + column, values);
    };
  });
}

// output (rows, columns) = gamma (columns,) * x; it may be x
extern "C" __global__ void layer_scale(
    stored_t* output, const stored_t* x, const stored_t* gamma, index_t rows, index_t columns) {
  const bool by_vectors = columns % VECTOR == 0 && is_aligned(output) && is_aligned(x) && is_aligned(gamma);
  for_rows(rows, columns, by_vectors, [=](index_t row) {
    return [=](index_t column, auto width) {
      constexpr int N = decltype(width)::N;
      float values[N], factors[N];
      load_run(values, x + row * columns + column);
      load_run(factors, gamma + column);
#pragma unroll
      for (int i = 0; i < N; i++) values[i] *= factors[i];
      store_run(output + row * columns + column, values);
    };
  });
}
