// Flat passes over whole arenas.

struct Step {
  float rate, beta1, beta2, offset, kept, gradient_scale;

  // One element, with the moments stored as m / (1 - beta1) and v / (1 - beta2): optimizer.py says what the factors are.
  __device__ __forceinline__ void advance(float& parameter, float& first, float& second, float gradient) const {
    const float scaled = gradient * gradient_scale;
    first = first * beta1 + scaled;
    second = second * beta2 + scaled * scaled;
    parameter = parameter * kept - rate * (first / (sqrtf(second) + offset));
  }
};

// Flat arrays of `size` elements; every thread has VECTOR elements at a time, and the last ones one by one.
extern "C" __global__ void __launch_bounds__(256, 4) adamw(
    stored_t* parameters, float* first_moment, float* second_moment, const stored_t* gradients, index_t size, float rate,
    float beta1, float beta2, float offset, float kept, float gradient_scale) {
  const Step step{rate, beta1, beta2, offset, kept, gradient_scale};
  const bool aligned =
      is_aligned(parameters) && is_aligned(first_moment) && is_aligned(second_moment) && is_aligned(gradients);
  const index_t vectors = aligned ? size / VECTOR : 0;
  float p[VECTOR], m[VECTOR], v[VECTOR], g[VECTOR];
  for (index_t i = thread_index() * VECTOR; i < vectors * VECTOR; i += thread_count() * VECTOR) {
    load_vector(p, parameters + i);
    load_vector(g, gradients + i);
    for (int k = 0; k < VECTOR; k += 4) {
      load_vector(m + k, first_moment + i + k);
      load_vector(v + k, second_moment + i + k);
    }
    for (int k = 0; k < VECTOR; k++) step.advance(p[k], m[k], v[k], g[k]);
    store_vector(parameters + i, p);
    for (int k = 0; k < VECTOR; k += 4) {
      store_vector(first_moment + i + k, m + k);
      store_vector(second_moment + i + k, v + k);
    }
  }
  for (index_t i = vectors * VECTOR + thread_index(); i < size; i += thread_count()) {
    float parameter = load(parameters + i);
    step.advance(parameter, first_moment[i], second_moment[i], load(gradients + i));
    store(parameters + i, parameter);
  }
}

// results (blocks,): the sum of squares of each block's share of x (size,), in double: squares of floats neither overflow nor
// vanish there. Under CuPy's -ftz denormals of float count as 0 before they are squared. Blocks of 256 threads; their number
// decides the order of the additions.
extern "C" __global__ void __launch_bounds__(256, 4) squares(double* results, const stored_t* x, index_t size) {
  __shared__ double sums[256];
  const index_t vectors = is_aligned(x) ? size / VECTOR : 0;
  float values[VECTOR];
  double sum = 0.0;
  for (index_t i = thread_index() * VECTOR; i < vectors * VECTOR; i += thread_count() * VECTOR) {
    load_vector(values, x + i);
    for (int k = 0; k < VECTOR; k++) sum += static_cast<double>(values[k]) * values[k];
  }
  for (index_t i = vectors * VECTOR + thread_index(); i < size; i += thread_count()) {
    const double value = load(x + i);
    sum += value * value;
  }
  sums[threadIdx.x] = sum;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) results[blockIdx.x] = sums[0];
}

__device__ __forceinline__ bool is_finite(float value) { return value - value == 0.0f; }

// results (blocks,): where the first infinity or NaN is among each block's share of x (size,); `size` where there is none.
extern "C" __global__ void __launch_bounds__(256, 4) first_non_finite(index_t* results, const stored_t* x, index_t size) {
  __shared__ index_t firsts[256];
  const index_t vectors = is_aligned(x) ? size / VECTOR : 0;
  float values[VECTOR];
  index_t first = size;
  for (index_t i = thread_index() * VECTOR; i < vectors * VECTOR && first == size; i += thread_count() * VECTOR) {
    load_vector(values, x + i);
    for (int k = VECTOR - 1; k >= 0; k--)
      if (!is_finite(values[k])) first = i + k;
  }
  for (index_t i = vectors * VECTOR + thread_index(); i < size && first == size; i += thread_count())
    if (!is_finite(load(x + i))) first = i;
  firsts[threadIdx.x] = first;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) firsts[threadIdx.x] = min(firsts[threadIdx.x], firsts[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) results[blockIdx.x] = firsts[0];
}
