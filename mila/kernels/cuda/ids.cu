// Checks of ids: each block leaves what it found of its share, and the host looks at the blocks' results.

constexpr index_t LARGEST = 0x7fffffffffffffffll;

__device__ __forceinline__ index_t block_least(index_t value) {
  __shared__ index_t partial[MOST_WARPS];
  for (int offset = WARP / 2; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(ALL_LANES, value, offset));
  __syncthreads();
  if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = value;
  __syncthreads();
  value = threadIdx.x % WARP < blockDim.x / WARP ? partial[threadIdx.x % WARP] : LARGEST;
  for (int offset = WARP / 2; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(ALL_LANES, value, offset));
  return value;
}

template <typename Id>
__device__ __forceinline__ void range(index_t* results, const Id* ids, index_t count) {
  index_t least = LARGEST, most = -LARGEST - 1;
  for (index_t i = thread_index(); i < count; i += thread_count()) {
    least = min(least, static_cast<index_t>(ids[i]));
    most = max(most, static_cast<index_t>(ids[i]));
  }
  least = block_least(least);
  most = ~block_least(~most);  // ~ turns the order round
  if (threadIdx.x == 0) {
    results[2 * blockIdx.x] = least;
    results[2 * blockIdx.x + 1] = most;
  }
}

template <typename Id>
__device__ __forceinline__ void first_outside(
    index_t* results, const Id* ids, index_t count, index_t limit, index_t except_for, int has_exception) {
  index_t first = LARGEST;
  for (index_t i = thread_index(); i < count && first == LARGEST; i += thread_count()) {
    const index_t id = ids[i];
    if ((id < 0 || id >= limit) && !(has_exception && id == except_for)) first = i;
  }
  first = block_least(first);
  if (threadIdx.x == 0) results[blockIdx.x] = first;
}

// results (blocks, 2): the least and the largest of each block's ids.
extern "C" __global__ void __launch_bounds__(256, 4) range_int32(index_t* results, const int* ids, index_t count) {
  range(results, ids, count);
}

extern "C" __global__ void __launch_bounds__(256, 4) range_int64(index_t* results, const index_t* ids, index_t count) {
  range(results, ids, count);
}

// results (blocks,): where the first id below 0 or from `limit` on is among each block's; LARGEST where there is none.
extern "C" __global__ void __launch_bounds__(256, 4) first_outside_int32(
    index_t* results, const int* ids, index_t count, index_t limit, index_t except_for, int has_exception) {
  first_outside(results, ids, count, limit, except_for, has_exception);
}

extern "C" __global__ void __launch_bounds__(256, 4) first_outside_int64(
    index_t* results, const index_t* ids, index_t count, index_t limit, index_t except_for, int has_exception) {
  first_outside(results, ids, count, limit, except_for, has_exception);
}
