// One bug per kernel. "BUG: name" marks the line that the report on kernel `name` must give.
#define FULL 0xffffffffu

// ---- races ----------------------------------------------------------------------------------------------------------

extern "C" __global__ void missing_barrier_before_read(float* y, const float* x, int count) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = tile[63 - threadIdx.x];  // BUG: missing_barrier_before_read
}

extern "C" __global__ void missing_barrier_before_write(float* y, const float* x, int count) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  const float other = tile[63 - threadIdx.x];
  tile[threadIdx.x] = 0.0f;  // BUG: missing_barrier_before_write
  y[threadIdx.x] = other;
}

extern "C" __global__ void tree_without_barrier(float* y, const float* x, int count) {
  extern __shared__ float sums[];
  sums[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2)
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];  // BUG: tree_without_barrier
  if (threadIdx.x == 0) y[0] = sums[0];
}

extern "C" __global__ void warp_without_sync(float* y, const float* x, int count) {
  __shared__ volatile float sums[64];
  sums[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 16) sums[threadIdx.x] += sums[threadIdx.x + 16];
  if (threadIdx.x < 8) sums[threadIdx.x] += sums[threadIdx.x + 8];  // BUG: warp_without_sync
  if (threadIdx.x == 0) y[0] = sums[0];
}

extern "C" __global__ void half_a_warp_without_sync(float* y, const float* x, int count) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x % 32 < 16) __syncwarp(0x0000ffffu);
  y[threadIdx.x] = tile[threadIdx.x ^ 16];  // BUG: half_a_warp_without_sync
}

extern "C" __global__ void race_between_blocks(float* y, const float* x, int count) {
  y[threadIdx.x] += x[threadIdx.x];  // BUG: race_between_blocks
}

extern "C" __global__ void one_result_of_all_blocks(float* y, const float* x, int count) {
  if (threadIdx.x == 0) y[0] = x[blockIdx.x];  // BUG: one_result_of_all_blocks
}

extern "C" __global__ void reads_a_counter(float* y, const float* x, int count) {
  unsigned* counter = reinterpret_cast<unsigned*>(y);
  atomicAdd(counter, 1);
  if (threadIdx.x == 0 && *counter > 64)  // BUG: reads_a_counter
    y[1] = x[0];
}

// ---- bounds and addresses -------------------------------------------------------------------------------------------

extern "C" __global__ void read_past_the_end(float* y, const float* x, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i + 4];  // BUG: read_past_the_end
}

extern "C" __global__ void write_past_the_end(float* y, const float* x, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= count) y[i] = 1.0f;  // BUG: write_past_the_end
}

extern "C" __global__ void write_before_the_start(float* y, const float* x, int count) {
  y[(int)threadIdx.x - 1] = 1.0f;  // BUG: write_before_the_start
}

extern "C" __global__ void vector_across_the_end(float* y, const float* x, int count) {
  struct __align__(8) Pair { float first, second; };
  reinterpret_cast<Pair*>(y)[threadIdx.x] = Pair{x[0], x[1]};  // BUG: vector_across_the_end
}

extern "C" __global__ void shared_array_overrun(float* y, const float* x, int count) {
  __shared__ float tile[64];
  tile[threadIdx.x + 1] = x[threadIdx.x];  // BUG: shared_array_overrun
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void shared_array_read_overrun(float* y, const float* x, int count) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x + 1];  // BUG: shared_array_read_overrun
}

extern "C" __global__ void dynamic_shared_overrun(float* y, const float* x, int count) {
  extern __shared__ float tile[];
  tile[threadIdx.x + 4] = x[threadIdx.x];  // BUG: dynamic_shared_overrun
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x + 4];
}

extern "C" __global__ void dynamic_shared_read_overrun(float* y, const float* x, int count) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x + 4];  // BUG: dynamic_shared_read_overrun
}

extern "C" __global__ void null_pointer(float* y, const float* x, int count) {
  const float* nothing = count > 0 ? nullptr : x;
  y[threadIdx.x] = nothing[threadIdx.x];  // BUG: null_pointer
}

extern "C" __global__ void constant_null_pointer(float* y, const float* x, int count) {
  float* nothing = nullptr;
  *nothing = x[0];  // BUG: constant_null_pointer
  y[threadIdx.x] = count;
}

extern "C" __global__ void misaligned_vector_load(float* y, const float* x, int count) {
  const float* odd = x + 1 + 4 * (threadIdx.x % 4);
  const float4 four = *reinterpret_cast<const float4*>(odd);  // BUG: misaligned_vector_load
  y[threadIdx.x] = four.x + four.y + four.z + four.w;
}

// ---- shared memory that nobody has written --------------------------------------------------------------------------

extern "C" __global__ void uninitialised_element(float* y, const float* x, int count) {
  __shared__ float tile[64];
  if (threadIdx.x > 0) tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x];  // BUG: uninitialised_element
}

extern "C" __global__ void uninitialised_sum(float* y, const float* x, int count) {
  __shared__ float sum;
  atomicAdd(&sum, x[threadIdx.x]);  // BUG: uninitialised_sum
  __syncthreads();
  if (threadIdx.x == 0) y[0] = sum;
}

extern "C" __global__ void left_by_the_block_before(float* y, const float* x, int count) {
  extern __shared__ float tile[];
  if (blockIdx.x == 0) tile[threadIdx.x] = x[threadIdx.x];
  y[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x];  // BUG: left_by_the_block_before
}

// ---- barriers and warp operations -----------------------------------------------------------------------------------

extern "C" __global__ void divergent_barrier(float* y, const float* x, int count) {
  if (threadIdx.x < 32) {
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
  } else {
    __syncthreads();  // BUG: divergent_barrier
    y[threadIdx.x] = 0.0f;
  }
}

extern "C" __global__ void barrier_after_exit(float* y, const float* x, int count) {
  if (threadIdx.x >= 50) return;
  y[threadIdx.x] = x[threadIdx.x];
  __syncthreads();  // BUG: barrier_after_exit
}

extern "C" __global__ void lane_outside_its_mask(float* y, const float* x, int count) {
  y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);  // BUG: lane_outside_its_mask
}

extern "C" __global__ void shuffle_from_outside_the_mask(float* y, const float* x, int count) {
  const int lane = threadIdx.x % 32;
  if (lane >= 16) return;
  y[threadIdx.x] = __shfl_sync(0x0000ffffu, x[threadIdx.x], 20);  // BUG: shuffle_from_outside_the_mask
}

extern "C" __global__ void shuffle_with_exited_lanes(float* y, const float* x, int count) {
  if (threadIdx.x >= 50) return;
  y[threadIdx.x] = __shfl_xor_sync(FULL, x[threadIdx.x], 1);  // BUG: shuffle_with_exited_lanes
}

extern "C" __global__ void different_operations_meet(float* y, const float* x, int count) {
  float value = x[threadIdx.x];
  if (threadIdx.x % 2) {
    value = __shfl_xor_sync(FULL, value, 1);
  } else {
    value = __shfl_down_sync(FULL, value, 1);
  }
  y[threadIdx.x] = value;
}

// ---- the rest -------------------------------------------------------------------------------------------------------

extern "C" __global__ void endless_loop(float* y, const float* x, int count) {
  volatile int* flag = reinterpret_cast<volatile int*>(y);
  while (*flag != 0) {  // nobody else runs until this thread waits
  }
}

extern "C" __global__ void division_by_zero(float* y, const float* x, int count) {
  y[threadIdx.x] = 7 / (count - 256);  // BUG: division_by_zero
}

extern "C" __global__ void trap(float* y, const float* x, int count) {
  if (threadIdx.x == 3) __trap();  // BUG: trap
}

extern "C" __global__ void failing_assertion(float* y, const float* x, int count) {
  assert(count == 1);  // BUG: failing_assertion
}

extern "C" __global__ void compiler_trap(float* y, const float* x, int count) {
#ifdef __CUDA_EMULATOR__
  __builtin_trap();
#endif
}

extern "C" __global__ void deep_stack(float* y, const float* x, int count) {
  volatile float local[1 << 16];
  for (int i = 0; i < (1 << 16); i++) local[i] = x[threadIdx.x];
  y[threadIdx.x] = local[count];
}

#define FEW 128
extern "C" __global__ void __launch_bounds__(FEW) few_threads(float* y) { y[threadIdx.x] = 1.0f; }
