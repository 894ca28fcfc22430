// product (M, N) = a (M, K) b (N, K) transposed, in bfloat16 on the tensor cores: one warp for 16 by 8 elements.
#include <cuda_bf16.h>

__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef __CUDA_EMULATOR__
  emulator::mma_m16n8k16_bf16(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Two neighbours of a row, in one register.
__device__ __forceinline__ unsigned pair_at(const __nv_bfloat16* matrix, int row, int column, int columns) {
  return *reinterpret_cast<const unsigned*>(matrix + (size_t)row * columns + column);
}

extern "C" __global__ void multiply(
    float* product, const __nv_bfloat16* a, const __nv_bfloat16* b, int N, int K) {
  const int group = threadIdx.x / 4, member = threadIdx.x % 4;
  const int m = blockIdx.x * 16 + group, n = blockIdx.y * 8 + group;
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int k = 2 * member; k < K; k += 16) {
    const unsigned rows[4] = {pair_at(a, m, k, K), pair_at(a, m + 8, k, K), pair_at(a, m, k + 8, K),
                              pair_at(a, m + 8, k + 8, K)};
    const unsigned columns[2] = {pair_at(b, n, k, K), pair_at(b, n, k + 8, K)};
    multiply_add(sums, rows, columns);
  }
  float* corner = product + (size_t)m * N + blockIdx.y * 8 + 2 * member;
  corner[0] = sums[0];
  corner[1] = sums[1];
  corner[8 * (size_t)N] = sums[2];
  corner[8 * (size_t)N + 1] = sums[3];
}
