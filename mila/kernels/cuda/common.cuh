// What every kernel file begins with; this text stands before its own. A module is compiled for one stored type, which a macro names.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(MILA_BFLOAT16)
using stored_t = __nv_bfloat16;
#elif defined(MILA_FLOAT16)
using stored_t = __half;
#elif defined(MILA_FLOAT32)
using stored_t = float;
#else
#error "define MILA_FLOAT32, MILA_BFLOAT16 or MILA_FLOAT16"
#endif

// Indices and sizes: arrays of more than 2^31 elements are ordinary.
using index_t = long long;

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int MOST_WARPS = 32;  // of a block

// ---- conversions: all arithmetic is in float; storing rounds to nearest, ties to even --------------------------------
__device__ __forceinline__ float load(const float* address) { return *address; }
__device__ __forceinline__ float load(const __nv_bfloat16* address) { return __bfloat162float(*address); }
__device__ __forceinline__ float load(const __half* address) { return __half2float(*address); }
__device__ __forceinline__ void store(float* address, float value) { *address = value; }
__device__ __forceinline__ void store(__nv_bfloat16* address, float value) { *address = __float2bfloat16_rn(value); }
__device__ __forceinline__ void store(__half* address, float value) { *address = __float2half_rn(value); }

// ---- vectors of 16 bytes, the widest access of a thread --------------------------------------------------------------
template <typename Element>
struct alignas(16) Vector {
  static constexpr int LENGTH = 16 / sizeof(Element);
  Element elements[LENGTH];
};
constexpr int VECTOR = Vector<stored_t>::LENGTH;  // stored elements in a vector: 4 or 8

// Whether vectors may be read there. Rows of a multiple of VECTOR elements are all aligned if the first one is.
__device__ __forceinline__ bool is_aligned(const void* address) {
  return reinterpret_cast<unsigned long long>(address) % 16 == 0;
}

template <typename Element>
__device__ __forceinline__ void load_vector(float* values, const Element* address) {
  const Vector<Element> vector = *reinterpret_cast<const Vector<Element>*>(address);
#pragma unroll
  for (int i = 0; i < Vector<Element>::LENGTH; i++) values[i] = load(&vector.elements[i]);
}

template <typename Element>
__device__ __forceinline__ void store_vector(Element* address, const float* values) {
  Vector<Element> vector;
#pragma unroll
  for (int i = 0; i < Vector<Element>::LENGTH; i++) store(&vector.elements[i], values[i]);
  *reinterpret_cast<Vector<Element>*>(address) = vector;
}

// WIDTH values from there: one, or a whole vector where the address is aligned for it.
template <int WIDTH, typename Element>
__device__ __forceinline__ void load_some(float* values, const Element* address) {
  static_assert(WIDTH == 1 || WIDTH == Vector<Element>::LENGTH, "one value or a vector");
  if constexpr (WIDTH == 1) values[0] = load(address);
  else load_vector(values, address);
}
template <int WIDTH, typename Element>
__device__ __forceinline__ void store_some(Element* address, const float* values) {
  static_assert(WIDTH == 1 || WIDTH == Vector<Element>::LENGTH, "one value or a vector");
  if constexpr (WIDTH == 1) store(address, values[0]);
  else store_vector(address, values);
}

// ---- grid-stride loops: for (index_t i = thread_index(); i < count; i += thread_count()) -----------------------------
__device__ __forceinline__ index_t thread_index() { return static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ index_t thread_count() { return static_cast<index_t>(gridDim.x) * blockDim.x; }

// ---- reductions: the order of the additions depends on the block's size alone ----------------------------------------
struct Sum {
  static __device__ __forceinline__ float neutral() { return 0.0f; }
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct Maximum {
  static __device__ __forceinline__ float neutral() { return __int_as_float(0xff800000); }  // minus infinity
  // Not a number wins, as in NumPy: fmaxf would drop it.
  static __device__ __forceinline__ float of(float a, float b) { return a > b || a != a ? a : b; }
};

// Over the 32 lanes of a warp, in every lane. All lanes take part.
template <typename Operation>
__device__ __forceinline__ float warp_reduce(float value) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2)
    value = Operation::of(value, __shfl_xor_sync(ALL_LANES, value, offset));
  return value;
}

// Over the threads of a block, in every thread. All threads take part; blockDim.x is a multiple of 32, y and z are 1.
template <typename Operation>
__device__ __forceinline__ float block_reduce(float value) {
  __shared__ float partial[MOST_WARPS];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  value = warp_reduce<Operation>(value);
  __syncthreads();  // everybody has read what the call before left
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return warp_reduce<Operation>(lane < warps ? partial[lane] : Operation::neutral());
}

__device__ __forceinline__ float warp_sum(float value) { return warp_reduce<Sum>(value); }
__device__ __forceinline__ float warp_max(float value) { return warp_reduce<Maximum>(value); }
__device__ __forceinline__ float block_sum(float value) { return block_reduce<Sum>(value); }
__device__ __forceinline__ float block_max(float value) { return block_reduce<Maximum>(value); }

// ---- dropout: whether an element is kept is a function of a key and the element's number, the same on every device ----
// SplitMix64 (Steele, Lea & Flood 2014); `threshold` is the probability of dropping, times 2^32.
__device__ __forceinline__ bool is_kept(
    unsigned long long key, unsigned long long number, unsigned long long threshold) {
  unsigned long long bits = key + (number + 1) * 0x9E3779B97F4A7C15ull;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ull;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBull;
  bits ^= bits >> 31;
  return bits >> 32 >= threshold;
}
