// What the toolkit's headers and NVRTC offer without any include of C++: number formats, vectors, mathematics.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void bfloat16_numbers(float* out, const __nv_bfloat16* x) {
  int i = 0;
  const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(x);
  const __nv_bfloat162 a = pairs[0], b = __ldg(pairs + 1);
  out[i++] = __low2float(a);
  out[i++] = __high2float(b);
  out[i++] = __bfloat162float(__hmul(a.x, b.y));
  out[i++] = __bfloat162float(__hfma(a.x, b.x, a.y));
  out[i++] = __high2float(__hfma2(a, b, a));
  out[i++] = __low2float(__hadd2(a, b));
  out[i++] = __low2float(a * b + a);
  out[i++] = __bfloat162float(__hmax(a.x, b.x));
  out[i++] = __bfloat162float(__ushort_as_bfloat16(__bfloat16_as_ushort(a.y)));
  out[i++] = __low2float(__float22bfloat162_rn(make_float2(1.0f, 2.0f)));
  out[i++] = __low2float(__halves2bfloat162(a.y, a.x));
  out[i++] = static_cast<float>(a.x);
  out[i++] = __low2float(__shfl_xor_sync(1u, a, 0));
}

extern "C" __global__ void half_numbers(float* out, const __half* x) {
  int i = 0;
  out[i++] = __half2float(__hadd(x[0], x[1]));
  out[i++] = __half2float(x[0] * x[1]);
  out[i++] = __half2float(__hfma(x[0], x[1], x[2]));
  out[i++] = __half22float2(*reinterpret_cast<const __half2*>(x)).y;
  out[i++] = static_cast<float>(__nv_fp8_e4m3(1.1f));
}

extern "C" __global__ void mathematics(float* out, float one) {
  int i = 0;
  const float zero = one - 1.0f;
  out[i++] = isnan(zero / zero) + 2 * isinf(one / zero) + 4 * isfinite(one);
  out[i++] = erff(one);
  out[i++] = exp2f(one) + log2f(4.0f) + floorf(1.5f) + rintf(2.5f) + copysignf(one, -2.0f) + powf(2.0f, 3.0f);
  out[i++] = fabsf(-one) + log1pf(zero) + expm1f(zero);
  float sine, cosine;
  sincosf(one, &sine, &cosine);
  out[i++] = sine;
  __sincosf(one, &sine, &cosine);
  out[i++] = cosine;
  out[i++] = clock64() > 0;
  assert(one == 1.0f);
}

// Vectors are read and written whole.
extern "C" __global__ void vectors(float4* out, const float4* x) {
  float4 value = x[threadIdx.x];
  value.x += 1.0f;
  out[threadIdx.x] = value;
  const uint4 bits = *reinterpret_cast<const uint4*>(&x[threadIdx.x]);
  out[threadIdx.x + 4] = make_float4(__uint_as_float(bits.x), 0.0f, 0.0f, __uint_as_float(bits.w));
}
