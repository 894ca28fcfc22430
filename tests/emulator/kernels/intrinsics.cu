// One number of each device function, for a comparison with what the CUDA documentation says.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FULL 0xffffffffu

extern "C" __global__ void integers(int* out) {
  int i = 0;
  out[i++] = __popc(0xf0f0u);
  out[i++] = __clz(1);
  out[i++] = __clz(0);
  out[i++] = __ffs(8);
  out[i++] = __mulhi(1 << 30, 8);
  out[i++] = __umulhi(0x80000000u, 6u);
  out[i++] = __brev(1u) == 0x80000000u;
  out[i++] = __byte_perm(0x33221100u, 0x77665544u, 0x7410) == 0x77441100u;
  out[i++] = __funnelshift_l(0x80000000u, 1u, 4) == 0x18u;
  out[i++] = __funnelshift_r(0x10u, 1u, 4) == 0x10000001u;
  out[i++] = __float2int_rn(2.5f);
  out[i++] = __float2int_rz(-2.7f);
  out[i++] = __float2int_rd(-2.2f);
  out[i++] = __float2int_ru(2.2f);
  out[i++] = __float2int_rn(3e9f);
  out[i++] = __float2int_rn(__int_as_float(0x7fc00000));
  out[i++] = __float2uint_rn(-1.0f);
  out[i++] = __float_as_int(1.0f);
  out[i++] = max(3, 4) + min(3, 4);
}

extern "C" __global__ void numbers(float* out) {
  int i = 0;
  out[i++] = rsqrtf(4.0f);
  out[i++] = __fdividef(1.0f, 8.0f);
  out[i++] = __saturatef(1.5f);
  out[i++] = __fmaf_rn(2.0f, 3.0f, 4.0f);
  out[i++] = __expf(0.0f);
  out[i++] = __uint_as_float(0x40490fdbu);
  out[i++] = fmaxf(__int_as_float(0x7fc00000), 1.0f);
  out[i++] = max(2.0f, 3.0);
  out[i++] = __half2float(__float2half(0.1f));
  out[i++] = __bfloat162float(__float2bfloat16(0.1f));
}

// One warp; results by lane, one row each.
extern "C" __global__ void warp_operations(int* out) {
  const int lane = threadIdx.x;
  out += lane;
  out[0 * 32] = __shfl_sync(FULL, lane, 3);
  out[1 * 32] = __shfl_sync(FULL, lane, 1, 8);
  out[2 * 32] = __shfl_up_sync(FULL, lane, 2);
  out[3 * 32] = __shfl_down_sync(FULL, lane, 2, 16);
  out[4 * 32] = __shfl_xor_sync(FULL, lane, 5);
  out[5 * 32] = __ballot_sync(FULL, lane % 3 == 0);
  out[6 * 32] = __any_sync(FULL, lane == 31) + 2 * __all_sync(FULL, lane < 31);
  out[7 * 32] = __reduce_add_sync(FULL, lane);
  out[8 * 32] = __reduce_min_sync(FULL, lane - 5);
}

extern "C" __global__ void atomics(int* out) {
  atomicAdd(&out[0], 2);
  atomicSub(&out[1], 1);
  atomicMax(&out[2], (int)threadIdx.x);
  atomicMin(&out[3], (int)threadIdx.x - 7);
  atomicOr(&out[4], 1 << threadIdx.x % 8);
  atomicAnd(&out[5], ~(1 << threadIdx.x % 8));
  atomicXor(&out[6], 1);
  atomicExch(&out[7], 9);
  atomicCAS(&out[8], 0, 5);
  atomicInc(reinterpret_cast<unsigned*>(&out[9]), 4u);
}

// a * b - c, with one rounding or two.
extern "C" __global__ void fused(float* out, float a, float b, float c) { out[0] = a * b - c; }
