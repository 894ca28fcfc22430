// Counts how often each of `bins` values occurs: atomics in shared memory, then one atomic per bin and block.
extern "C" __global__ void histogram(unsigned* counts, const int* values, int count, int bins) {
  __shared__ unsigned local[64];
  for (int i = threadIdx.x; i < bins; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    atomicAdd(&local[values[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x) atomicAdd(&counts[i], local[i]);
}
