// What looks like a bug and is none: the checks must stay silent.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FULL 0xffffffffu

// Half warps keep their own order.
extern "C" __global__ void half_warps(float* y, const float* x, int count) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  const unsigned mask = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  __syncwarp(mask);
  y[threadIdx.x] = tile[threadIdx.x ^ 15];
}

// The last warp has 18 lanes; a full mask names those that exist.
extern "C" __global__ void partial_warp(float* y, const float* x, int count) {
  const float below = __shfl_up_sync(FULL, x[threadIdx.x], 1);
  y[threadIdx.x] = threadIdx.x % 32 ? below : 0.0f;
}

// Blocks add to one place, atomically; each block writes its own places.
extern "C" __global__ void atomics_between_blocks(float* y, const float* x, int count) {
  if (threadIdx.x == 0) atomicAdd(&y[0], 1.0f);
  if (threadIdx.x > 0) y[blockIdx.x * blockDim.x + threadIdx.x] = x[threadIdx.x];
}

// Bytes and halves of one word belong to different threads.
extern "C" __global__ void small_elements(float* y, const float* x, int count) {
  __shared__ unsigned char bytes[64];
  __shared__ unsigned short halves[64];
  bytes[threadIdx.x] = threadIdx.x;
  halves[threadIdx.x] = 2 * threadIdx.x;
  reinterpret_cast<unsigned char*>(y)[threadIdx.x + 128] = bytes[threadIdx.x];
  reinterpret_cast<unsigned short*>(y)[threadIdx.x] = halves[threadIdx.x] + bytes[threadIdx.x];
}

extern "C" __global__ void counted_barriers(float* y, const float* x, int count) {
  const int even = __syncthreads_count(threadIdx.x % 2 == 0);
  const int any = __syncthreads_or(threadIdx.x == 5), none = __syncthreads_or(0);
  const int all = __syncthreads_and(1), most = __syncthreads_and(threadIdx.x != 5);
  y[threadIdx.x] = even + 1000 * any + 2000 * none + 4000 * all + 8000 * most;
}

// Shared memory of every kind of element, in a template too.
template <typename Element, int count>
__device__ float through_shared(float value) {
  __shared__ Element tile[count];
  tile[threadIdx.x] = Element(value);
  __syncthreads();
  return static_cast<float>(tile[count - 1 - threadIdx.x]);
}
extern "C" __global__ void shared_types(float* y, const float* x, int count) {
  __shared__ __nv_bfloat162 pairs[2][32];
  __shared__ float4 vectors[64];
  extern __shared__ __align__(16) unsigned char raw[];
  const float value = threadIdx.x;
  float4* dynamic = reinterpret_cast<float4*>(raw);
  pairs[threadIdx.x / 32][threadIdx.x % 32] = __floats2bfloat162_rn(value, value);
  vectors[threadIdx.x] = make_float4(value, value, value, value);
  dynamic[threadIdx.x] = vectors[threadIdx.x];
  float sum = through_shared<float, 64>(value) + through_shared<__nv_bfloat16, 64>(value);
  sum += through_shared<__half, 64>(value);
  sum += __high2float(pairs[1 - threadIdx.x / 32][31 - threadIdx.x % 32]);
  y[threadIdx.x] = sum + vectors[63 - threadIdx.x].w + dynamic[63 - threadIdx.x].z;
}

// Arrays of a thread, reached through pointers.
__device__ __noinline__ float sum_of(const float* values, int count) {
  float sum = 0.0f;
  for (int i = 0; i < count; i++) sum += values[i];
  return sum;
}
extern "C" __global__ void local_array(float* y, const float* x, int count) {
  float mine[8];
  for (int i = 0; i < 8; i++) mine[i] = x[threadIdx.x] + i;
  y[threadIdx.x] = sum_of(mine, 8);
}

__constant__ float table[4] = {1.0f, 2.0f, 4.0f, 8.0f};
extern "C" __global__ void constant_table(float* y, const float* x, int count) {
  y[threadIdx.x] = table[threadIdx.x % 4];
}
