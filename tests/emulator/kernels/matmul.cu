// product (M, N) = a (M, K) b (K, N), in tiles of 16 by 16. Grid (ceil(N / 16), ceil(M / 16)), block (16, 16).
#define TILE 16

extern "C" __global__ void matmul(float* product, const float* a, const float* b, int M, int N, int K) {
  __shared__ float rows[TILE][TILE], columns[TILE][TILE];
  const int m = blockIdx.y * TILE + threadIdx.y, n = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int first = 0; first < K; first += TILE) {
    const int k = first + threadIdx.x, l = first + threadIdx.y;
    rows[threadIdx.y][threadIdx.x] = m < M && k < K ? a[(size_t)m * K + k] : 0.0f;
    columns[threadIdx.y][threadIdx.x] = l < K && n < N ? b[(size_t)l * N + n] : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE; i++) sum += rows[threadIdx.y][i] * columns[i][threadIdx.x];
    __syncthreads();
  }
  if (m < M && n < N) product[(size_t)m * N + n] = sum;
}
