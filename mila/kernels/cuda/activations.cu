// Activations of flat arrays. Grid and block as rows.cuh says.
#include "activation_functions.cuh"
#include "rows.cuh"

// output (size,) = f(x); it may be x
extern "C" __global__ void activation_forward(
    stored_t* output, const stored_t* x, index_t size, int kind, float option, float second_option) {
  for_elements(size, is_aligned(output) && is_aligned(x), [=](index_t first, auto width) {
    constexpr int N = decltype(width)::N;
    float values[N];
    load_run(values, x + first);
    with_function(kind, option, second_option, [&](auto function) {
#pragma unroll
      for (int i = 0; i < N; i++) values[i] = function.value(values[i]);
    });
    store_run(output + first, values);
  });
}

// output (size,) = f(x), derivative (size,) = f'(x), which may be x
extern "C" __global__ void activation_with_derivative(
    stored_t* output, stored_t* derivative, const stored_t* x, index_t size, int kind, float option,
    float second_option) {
  const bool by_vectors = is_aligned(output) && is_aligned(derivative) && is_aligned(x);
  for_elements(size, by_vectors, [=](index_t first, auto width) {
    constexpr int N = decltype(width)::N;
    float values[N], slopes[N];
    load_run(values, x + first);
    with_function(kind, option, second_option, [&](auto function) {
#pragma unroll
      for (int i = 0; i < N; i++) values[i] = function.both(values[i], slopes[i]);
    });
    store_run(output + first, values);
    store_run(derivative + first, slopes);
  });
}
