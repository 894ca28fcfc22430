// Gated activations. Grid and block as rows.cuh says. A file of its own, since every function takes its time to
// compile.
#include "activation_functions.cuh"
#include "rows.cuh"

// output (rows, columns) = f(gate) up, x (rows, 2 columns) = gate, up
extern "C" __global__ void gated_forward(
    stored_t* output, const stored_t* x, index_t rows, index_t columns, int kind, float option, float second_option) {
  const bool by_vectors = columns % VECTOR == 0 && is_aligned(output) && is_aligned(x);
  for_rows(rows, columns, by_vectors, [=](index_t row) {
    const stored_t* const gate = x + row * 2 * columns;
    return [=](index_t column, auto width) {
      constexpr int N = decltype(width)::N;
      float values[N], factors[N];
      load_run(values, gate + column);
      load_run(factors, gate + columns + column);
      with_function(kind, option, second_option, [&](auto function) {
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = function.value(values[i]) * factors[i];
      });
      store_run(output + row * columns + column, values);
    };
  });
}

// dx (rows, 2 columns) = dy f'(gate) up, dy f(gate); dy (rows, columns); dx may be x
extern "C" __global__ void gated_backward(
    stored_t* dx, const stored_t* dy, const stored_t* x, index_t rows, index_t columns, int kind, float option,
    float second_option) {
  const bool by_vectors = columns % VECTOR == 0 && is_aligned(dx) && is_aligned(dy) && is_aligned(x);
  for_rows(rows, columns, by_vectors, [=](index_t row) {
    const stored_t* const gate = x + row * 2 * columns;
    stored_t* const dgate = dx + row * 2 * columns;
    return [=](index_t column, auto width) {
      constexpr int N = decltype(width)::N;
      float gradients[N], values[N], factors[N];
      load_run(gradients, dy + row * columns + column);
      load_run(values, gate + column);
      load_run(factors, gate + columns + column);
      with_function(kind, option, second_option, [&](auto function) {
#pragma unroll
        for (int i = 0; i < N; i++) {
          float slope;
          values[i] = gradients[i] * function.both(values[i], slope);
          factors[i] = gradients[i] * (slope * factors[i]);
        }
      });
      store_run(dgate + column, factors);
      store_run(dgate + columns + column, values);
    };
  });
}
