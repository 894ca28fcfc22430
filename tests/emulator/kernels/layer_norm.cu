// Layer norm over rows of `columns` elements, one block a row. Sums: shuffles in a warp, then dynamic shared memory.
#include <cuda_bf16.h>

template <typename Element>
__device__ __forceinline__ float as_float(Element value) {
  return static_cast<float>(value);
}
template <>
__device__ __forceinline__ float as_float<__nv_bfloat16>(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
template <typename Element>
__device__ __forceinline__ Element from_float(float value) {
  return static_cast<Element>(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16(value);
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The sum over the block, in every thread. `partial` holds a float for each warp.
__device__ __forceinline__ float block_sum(float value, float* partial) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  __syncthreads();  // everybody has read what the call before left
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : 0.0f);
}

template <typename Element>
__global__ void __launch_bounds__(1024) layer_norm(
    Element* y, float* mean, float* rstd, const Element* x, const float* weight, const float* bias, int columns,
    float epsilon) {
  extern __shared__ float partial[];
  const size_t row = blockIdx.x;
  x += row * columns;
  y += row * columns;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += as_float(x[i]);
  const float center = block_sum(sum, partial) / columns;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float distance = as_float(x[i]) - center;
    squares += distance * distance;
  }
  const float scale = rsqrtf(block_sum(squares, partial) / columns + epsilon);
  if (threadIdx.x == 0) {
    mean[row] = center;
    rstd[row] = scale;
  }
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    y[i] = from_float<Element>((as_float(x[i]) - center) * scale * weight[i] + bias[i]);
}
