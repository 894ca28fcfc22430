// Choosing experts for rows, and moving rows to their experts and back. Slots are numbered row * top_k + choice.

constexpr int GROUP_BLOCK = 256;

#if defined(MILA_BFLOAT16)
constexpr float SMALLEST = -3.3895313892515355e38f;
#elif defined(MILA_FLOAT16)
constexpr float SMALLEST = -65504.0f;
#else
constexpr float SMALLEST = -3.4028234663852886e38f;
#endif

// A number that orders elements of a row: by value, NaN above all and minus infinity as the smallest finite value, and equal ones
// by index, the lower above.
__device__ __forceinline__ unsigned long long rank_of(float value, index_t index) {
  unsigned order = ALL_LANES;
  if (value == value) {
    const float kept = fmaxf(value, SMALLEST) + 0.0f;  // one zero
    const unsigned bits = static_cast<unsigned>(__float_as_int(kept));
    order = bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  return static_cast<unsigned long long>(order) << 32 | ~static_cast<unsigned>(index);
}

// values, indices (rows, top_k): the largest of each row of x (rows, columns), each below the one before it. A warp for each row.
extern "C" __global__ void __launch_bounds__(256, 4) top_k_forward(
    stored_t* values, int* indices, const stored_t* x, index_t rows, index_t columns, index_t top_k) {
  const int lane = threadIdx.x % WARP;
  for (index_t row = thread_index() / WARP; row < rows; row += thread_count() / WARP) {
    const stored_t* source = x + row * columns;
    unsigned long long before = 0;
    for (index_t choice = 0; choice < top_k; choice++) {
      unsigned long long best = 0;
      for (index_t i = lane; i < columns; i += WARP) {
        const unsigned long long rank = rank_of(load(source + i), i);
        if ((choice == 0 || rank < before) && rank > best) best = rank;
      }
      for (int offset = WARP / 2; offset > 0; offset /= 2)
        best = max(best, __shfl_xor_sync(ALL_LANES, best, offset));
      const unsigned index = ~static_cast<unsigned>(best);
      if (lane == 0) {
        values[row * top_k + choice] = source[index];
        indices[row * top_k + choice] = static_cast<int>(index);
      }
      before = best;
    }
  }
}

// dx (rows, columns): dvalues (rows, top_k) where indices (rows, top_k) say, else 0. A thread for each element.
extern "C" __global__ void __launch_bounds__(256, 4) top_k_backward(
    stored_t* dx, const stored_t* dvalues, const int* indices, index_t rows, index_t columns, index_t top_k) {
  for (index_t i = thread_index(); i < rows * columns; i += thread_count()) {
    const index_t row = i / columns, column = i % columns;
    float value = 0.0f;
    for (index_t choice = row * top_k; choice < (row + 1) * top_k; choice++)
      if (indices[choice] == column) value = load(dvalues + choice);
    store(dx + i, value);
  }
}

// slots (count,): those of each expert in order, after those of all experts before it. bounds[blockIdx.x]: where those of expert
// first_expert + blockIdx.x begin. A block for each expert, which reads all of experts (count,) twice.
extern "C" __global__ void __launch_bounds__(GROUP_BLOCK, 4) group_slots(
    int* slots, index_t* bounds, const int* experts, index_t count, int first_expert) {
  __shared__ int counts[GROUP_BLOCK / WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, expert = first_expert + static_cast<int>(blockIdx.x);
  index_t next = 0;
  for (index_t start = 0; start < count; start += GROUP_BLOCK) {
    const index_t slot = start + threadIdx.x;
    next += __syncthreads_count(slot < count && experts[slot] < expert);
  }
  if (threadIdx.x == 0) bounds[blockIdx.x] = next;
  for (index_t start = 0; start < count; start += GROUP_BLOCK) {
    const index_t slot = start + threadIdx.x;
    const bool is_own = slot < count && experts[slot] == expert;
    const unsigned ballot = __ballot_sync(ALL_LANES, is_own);
    if (lane == 0) counts[warp] = __popc(ballot);
    __syncthreads();
    index_t place = next + __popc(ballot & ((1u << lane) - 1));
    for (int other = 0; other < GROUP_BLOCK / WARP; other++) {
      if (other < warp) place += counts[other];
      next += counts[other];
    }
    if (is_own) slots[place] = static_cast<int>(slot);
    __syncthreads();  // the counts were read
  }
}

// output (count, columns) = x[slots // top_k]. A block for each slot.
extern "C" __global__ void __launch_bounds__(256, 4) gather_rows(
    stored_t* output, const stored_t* x, const int* slots, index_t count, index_t columns, int top_k) {
  const bool vectors = columns % VECTOR == 0 && is_aligned(output) && is_aligned(x);
  for (index_t i = blockIdx.x; i < count; i += gridDim.x) {
    const stored_t* source = x + slots[i] / top_k * columns;
    stored_t* target = output + i * columns;
    if (vectors) {
      for (index_t column = threadIdx.x * VECTOR; column < columns; column += blockDim.x * VECTOR)
        *reinterpret_cast<Vector<stored_t>*>(target + column) =
            *reinterpret_cast<const Vector<stored_t>*>(source + column);
    } else {
      for (index_t column = threadIdx.x; column < columns; column += blockDim.x) target[column] = source[column];
    }
  }
}

template <int WIDTH>
__device__ __forceinline__ void scatter(
    stored_t* output, const stored_t* x, const stored_t* weights, const int* slots, index_t count, index_t columns,
    int top_k) {
  float sums[WIDTH], values[WIDTH];
  for (index_t i = blockIdx.x; i < count; i += gridDim.x) {
    const float factor = weights == nullptr ? 1.0f : load(weights + slots[i]);
    stored_t* target = output + slots[i] / top_k * columns;
    for (index_t column = threadIdx.x * WIDTH; column < columns; column += blockDim.x * WIDTH) {
      load_some<WIDTH>(sums, target + column);
      load_some<WIDTH>(values, x + i * columns + column);
      for (int k = 0; k < WIDTH; k++) sums[k] += factor * values[k];
      store_some<WIDTH>(target + column, sums);
    }
  }
}

// output[slots // top_k] += weights[slots] * x (count, columns); no weights are ones. No two slots share a row. A block for each.
extern "C" __global__ void __launch_bounds__(256, 4) scatter_add_rows(
    stored_t* output, const stored_t* x, const stored_t* weights, const int* slots, index_t count, index_t columns,
    int top_k) {
  if (columns % VECTOR == 0 && is_aligned(output) && is_aligned(x))
    scatter<VECTOR>(output, x, weights, slots, count, columns, top_k);
  else
    scatter<1>(output, x, weights, slots, count, columns, top_k);
}

// Of each row the sum of dy * x, and dx = factor * dy. A thread reads its columns of x before it writes them: dx may be x.
template <int WIDTH>
__device__ __forceinline__ void scatter_backward(
    stored_t* dx, stored_t* dweights, const stored_t* dy, const stored_t* x, const stored_t* weights, const int* slots,
    index_t count, index_t columns, int top_k) {
  float upstream[WIDTH], values[WIDTH];
  for (index_t i = blockIdx.x; i < count; i += gridDim.x) {
    const stored_t* source = dy + slots[i] / top_k * columns;
    const float factor = load(weights + slots[i]);
    float sum = 0.0f;
    for (index_t column = threadIdx.x * WIDTH; column < columns; column += blockDim.x * WIDTH) {
      load_some<WIDTH>(upstream, source + column);
      load_some<WIDTH>(values, x + i * columns + column);
      for (int k = 0; k < WIDTH; k++) {
        sum += upstream[k] * values[k];
        values[k] = factor * upstream[k];
      }
      store_some<WIDTH>(dx + i * columns + column, values);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) store(dweights + slots[i], sum);
  }
}

// dx (count, columns) = weights[slots] * dy[slots // top_k], dweights[slots] = sum(dy * x). A block for each slot.
extern "C" __global__ void __launch_bounds__(256, 4) scatter_add_rows_backward(
    stored_t* dx, stored_t* dweights, const stored_t* dy, const stored_t* x, const stored_t* weights, const int* slots,
    index_t count, index_t columns, int top_k) {
  if (columns % VECTOR == 0 && is_aligned(dx) && is_aligned(dy) && is_aligned(x))
    scatter_backward<VECTOR>(dx, dweights, dy, x, weights, slots, count, columns, top_k);
  else
    scatter_backward<1>(dx, dweights, dy, x, weights, slots, count, columns, top_k);
}
