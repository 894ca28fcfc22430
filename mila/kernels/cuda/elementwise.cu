// Copies, sums, products, bounds and dropout of flat arrays: output (size,) from inputs (size,), one element from the
// same element of each input. So an output may be any of the inputs. Grid and block as rows.cuh says.
#include "rows.cuh"

// ---- one, two or no inputs ------------------------------------------------------------------------------------------
// output = function(x, index)
template <typename Output, typename Input, typename Function>
__device__ __forceinline__ void map(Output* output, const Input* x, index_t size, Function function) {
  for_elements(size, is_aligned(output) && is_aligned(x), [=](index_t first, auto width) {
    constexpr int N = decltype(width)::N;
    float values[N];
    load_run(values, x + first);
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = function(values[i], first + i);
    store_run(output + first, values);
  });
}

// output = function(a, b)
template <typename Output, typename Left, typename Right, typename Function>
__device__ __forceinline__ void map(Output* output, const Left* a, const Right* b, index_t size, Function function) {
  for_elements(size, is_aligned(output) && is_aligned(a) && is_aligned(b), [=](index_t first, auto width) {
    constexpr int N = decltype(width)::N;
    float left[N], right[N];
    load_run(left, a + first);
    load_run(right, b + first);
#pragma unroll
    for (int i = 0; i < N; i++) left[i] = function(left[i], right[i]);
    store_run(output + first, left);
  });
}

// ---- bytes: any type ------------------------------------------------------------------------------------------------
__device__ __forceinline__ unsigned long long number_of(const void* address) {
  return reinterpret_cast<unsigned long long>(address);
}

// move(unit) with a value of the widest type, up to 16 bytes, in which the numbers that were joined by | are counted.
template <typename Move>
__device__ __forceinline__ void by_widest_unit(unsigned long long numbers, Move move) {
  if (numbers % 16 == 0) return move(ulonglong2());
  if (numbers % 8 == 0) return move(0ull);
  if (numbers % 4 == 0) return move(0u);
  if (numbers % 2 == 0) return move(static_cast<unsigned short>(0));
  move(static_cast<unsigned char>(0));
}

// Copies `rows` rows of `bytes` bytes, from x_start to output_start. A pitch is the distance of a row from the next.
// All in bytes.
extern "C" __global__ void copy_rows(
    void* output, const void* x, index_t rows, index_t bytes, index_t output_pitch, index_t x_pitch,
    index_t output_start, index_t x_start) {
  unsigned char* const target = static_cast<unsigned char*>(output) + output_start;
  const unsigned char* const source = static_cast<const unsigned char*>(x) + x_start;
  if (target == source) return;
  const unsigned long long distances = rows > 1 ? output_pitch | x_pitch | bytes : 0;
  by_widest_unit(number_of(target) | number_of(source) | distances, [=](auto unit) {
    using Unit = decltype(unit);
    for_rows(rows, bytes / sizeof(Unit), false, [=](index_t row) {
      Unit* const to = reinterpret_cast<Unit*>(target + row * output_pitch);
      const Unit* const from = reinterpret_cast<const Unit*>(source + row * x_pitch);
      return [=](index_t column, auto) { to[column] = from[column]; };
    });
    const index_t rest = bytes % sizeof(Unit);  // of a single row
    for_elements(rest, false, [=](index_t i, auto) { target[bytes - rest + i] = source[bytes - rest + i]; });
  });
}

// Writes an element over and over; `pattern` is as many of it as make 8 bytes.
extern "C" __global__ void fill(void* output, index_t bytes, unsigned long long pattern) {
  by_widest_unit(number_of(output), [=](auto unit) {
    using Unit = decltype(unit);
    Unit value;
    if constexpr (sizeof(Unit) == 16)
      value = make_ulonglong2(pattern, pattern);
    else
      value = static_cast<Unit>(pattern);
    for_elements(bytes / sizeof(Unit), false, [=](index_t i, auto) { static_cast<Unit*>(output)[i] = value; });
    const index_t rest = bytes % sizeof(Unit);
    for_elements(rest, false, [=](index_t i, auto) {
      static_cast<unsigned char*>(output)[bytes - rest + i] = static_cast<unsigned char>(pattern >> 8 * (i % 8));
    });
  });
}

// ---- other types: read as they are, rounded once to the stored type -------------------------------------------------
__device__ __forceinline__ auto identity() {
  return [](float x, index_t) { return x; };
}
__device__ __forceinline__ auto sum() {
  return [](float a, float b) { return a + b; };
}

extern "C" __global__ void cast_from_float32(stored_t* output, const float* x, index_t size) {
  map(output, x, size, identity());
}
extern "C" __global__ void cast_from_bfloat16(stored_t* output, const __nv_bfloat16* x, index_t size) {
  map(output, x, size, identity());
}
extern "C" __global__ void cast_from_float16(stored_t* output, const __half* x, index_t size) {
  map(output, x, size, identity());
}

// output += x
extern "C" __global__ void add_float32(stored_t* output, const float* x, index_t size) {
  map(output, output, x, size, sum());
}
extern "C" __global__ void add_bfloat16(stored_t* output, const __nv_bfloat16* x, index_t size) {
  map(output, output, x, size, sum());
}
extern "C" __global__ void add_float16(stored_t* output, const __half* x, index_t size) {
  map(output, output, x, size, sum());
}

// ---- the stored type ------------------------------------------------------------------------------------------------
extern "C" __global__ void subtract(stored_t* output, const stored_t* a, const stored_t* b, index_t size) {
  map(output, a, b, size, [](float a, float b) { return a - b; });
}

extern "C" __global__ void multiply(stored_t* output, const stored_t* a, const stored_t* b, index_t size) {
  map(output, a, b, size, [](float a, float b) { return a * b; });
}

// output = a + scale * b, rounded once
extern "C" __global__ void residual(stored_t* output, const stored_t* a, const stored_t* b, index_t size, float scale) {
  map(output, a, b, size, [=](float a, float b) { return fmaf(scale, b, a); });
}

extern "C" __global__ void scale(stored_t* output, const stored_t* x, index_t size, float factor) {
  map(output, x, size, [=](float x, index_t) { return factor * x; });
}

// output = gamma[0] * x
extern "C" __global__ void learned_scale(stored_t* output, const stored_t* x, const stored_t* gamma, index_t size) {
  const float factor = load(gamma);
  map(output, x, size, [=](float x, index_t) { return factor * x; });
}

// Comparisons, not fminf and fmaxf, which would drop NaN.
extern "C" __global__ void clamp_forward(
    stored_t* output, const stored_t* x, index_t size, float minimum, float maximum) {
  map(output, x, size, [=](float x, index_t) {
    const float raised = x < minimum ? minimum : x;
    return raised > maximum ? maximum : raised;
  });
}

extern "C" __global__ void clamp_backward(
    stored_t* dx, const stored_t* dy, const stored_t* x, index_t size, float minimum, float maximum) {
  map(dx, dy, x, size, [=](float dy, float x) { return x >= minimum && x <= maximum ? dy : 0.0f; });
}

// output = x factor where it is kept, else 0 x
extern "C" __global__ void dropout(
    stored_t* output, const stored_t* x, index_t size, unsigned long long key, unsigned long long threshold,
    float factor) {
  map(output, x, size, [=](float x, index_t i) { return x * (is_kept(key, i, threshold) ? factor : 0.0f); });
}
