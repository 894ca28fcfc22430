// GELU with its tanh form, on pairs of bfloat16.
#include <cuda_bf16.h>

__device__ __forceinline__ float gelu_of(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

extern "C" __global__ void gelu(__nv_bfloat162* y, const __nv_bfloat162* x, int pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  const float2 value = __bfloat1622float2(x[i]);
  y[i] = __floats2bfloat162_rn(gelu_of(value.x), gelu_of(value.y));
}
