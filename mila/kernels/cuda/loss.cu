// Softmax cross-entropy. Probabilities are computed where they are used and never stored. A block works on a row of logits at a
// time and reads it once in either direction.
#include "rows.cuh"

// visit(column, width) for the columns of a row that starts at element `start` of an aligned array: vectors wherever they are
// aligned, which the first and the last columns may not be. Not aligned: one by one.
template <typename Visit>
__device__ __forceinline__ void for_columns(index_t start, index_t columns, bool aligned, Visit visit) {
  const index_t head = aligned ? min(columns, (VECTOR - start % VECTOR) % VECTOR) : columns;
  const index_t vectors = (columns - head) / VECTOR, tail = head + vectors * VECTOR;
  for (index_t i = threadIdx.x; i < head; i += blockDim.x) visit(i, Width<1>());
  for (index_t i = threadIdx.x; i < vectors; i += blockDim.x) visit(head + i * VECTOR, Width<VECTOR>());
  for (index_t i = tail + threadIdx.x; i < columns; i += blockDim.x) visit(i, Width<1>());
}

// ---- valid targets ----------------------------------------------------------------------------------------------------
template <typename Id>
__device__ __forceinline__ void count_valid(index_t* count, const Id* targets, index_t rows, index_t ignore_index) {
  index_t valid = 0;
  for (index_t start = 0; start < rows; start += blockDim.x) {
    const index_t row = start + threadIdx.x;
    valid += __syncthreads_count(row < rows && targets[row] != ignore_index);
  }
  if (threadIdx.x == 0) *count = valid;
}

// count (1,): how many targets are not ignore_index. One block.
extern "C" __global__ void __launch_bounds__(1024) count_valid_int32(
    index_t* count, const int* targets, index_t rows, index_t ignore_index) {
  count_valid(count, targets, rows, ignore_index);
}

extern "C" __global__ void __launch_bounds__(1024) count_valid_int64(
    index_t* count, const index_t* targets, index_t rows, index_t ignore_index) {
  count_valid(count, targets, rows, ignore_index);
}

// ---- forward ----------------------------------------------------------------------------------------------------------
// A sum of exponentials relative to the largest of them; both grow in one pass.
struct Exponentials {
  float largest = Maximum::neutral(), sum = 0.0f;

  // What is subtracted: nothing while all values are minus infinity, so that none of them becomes not a number.
  static __device__ __forceinline__ float shift(float largest) { return largest == Maximum::neutral() ? 0.0f : largest; }

  template <int N>
  __device__ __forceinline__ void add(const float* values) {
    float next = largest;
    for (int k = 0; k < N; k++) next = Maximum::of(next, values[k]);
    sum *= expf(largest - shift(next));
    for (int k = 0; k < N; k++) sum += expf(values[k] - shift(next));
    largest = next;
  }
};

template <typename Id>
__device__ __forceinline__ void rows_forward(
    float* log_sum_exp, float* losses, const stored_t* logits, const Id* targets, index_t rows, index_t vocabulary,
    index_t ignore_index, int has_ignored) {
  const bool aligned = is_aligned(logits);
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const stored_t* source = logits + row * vocabulary;
    Exponentials own;
    for_columns(row * vocabulary, vocabulary, aligned, [&](index_t column, auto width) {
      constexpr int N = decltype(width)::N;
      float values[N];
      load_some<N>(values, source + column);
      own.add<N>(values);
    });
    const float largest = block_max(own.largest);
    const float sum = block_sum(own.sum * expf(own.largest - Exponentials::shift(largest)));
    if (threadIdx.x == 0) {
      const float total = largest + logf(sum);
      const Id target = targets[row];
      log_sum_exp[row] = total;
      losses[row] = has_ignored && target == ignore_index ? 0.0f : total - load(source + target);
    }
  }
}

// log_sum_exp, losses (rows,); logits (rows, vocabulary); targets (rows,). A block for each row.
extern "C" __global__ void __launch_bounds__(512, 2) rows_forward_int32(
    float* log_sum_exp, float* losses, const stored_t* logits, const int* targets, index_t rows, index_t vocabulary,
    index_t ignore_index, int has_ignored) {
  rows_forward(log_sum_exp, losses, logits, targets, rows, vocabulary, ignore_index, has_ignored);
}

extern "C" __global__ void __launch_bounds__(512, 2) rows_forward_int64(
    float* log_sum_exp, float* losses, const stored_t* logits, const index_t* targets, index_t rows,
    index_t vocabulary, index_t ignore_index, int has_ignored) {
  rows_forward(log_sum_exp, losses, logits, targets, rows, vocabulary, ignore_index, has_ignored);
}

// loss (1,) = the sum of losses (rows,), taken in double, over the number of valid targets: `rows` where count is null. 0 when
// there is none. One block of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) mean(
    float* loss, const float* losses, const index_t* count, index_t rows) {
  __shared__ double sums[1024];
  double sum = 0.0;
  for (index_t row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
  sums[threadIdx.x] = sum;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  const index_t valid = count == nullptr ? rows : *count;
  *loss = valid == 0 ? 0.0f : static_cast<float>(sums[0] / valid);
}

// ---- backward ---------------------------------------------------------------------------------------------------------
template <typename Id>
__device__ __forceinline__ void rows_backward(
    stored_t* dlogits, const float* log_sum_exp, const float* dloss, const stored_t* logits, const Id* targets,
    const index_t* count, index_t rows, index_t vocabulary, index_t ignore_index, int has_ignored) {
  const bool aligned = is_aligned(dlogits) && is_aligned(logits);
  const index_t valid = count == nullptr ? rows : *count;
  const float scale = *dloss / static_cast<float>(max(valid, static_cast<index_t>(1)));
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const index_t target = targets[row];
    const bool ignored = has_ignored && target == ignore_index;
    const float total = log_sum_exp[row];
    for_columns(row * vocabulary, vocabulary, aligned, [&](index_t column, auto width) {
      constexpr int N = decltype(width)::N;
      float values[N];
      load_some<N>(values, logits + row * vocabulary + column);
      for (int k = 0; k < N; k++) {
        const float difference = expf(values[k] - total) - (column + k == target ? 1.0f : 0.0f);
        values[k] = ignored ? 0.0f : scale * difference;
      }
      store_some<N>(dlogits + row * vocabulary + column, values);
    });
  }
}

// dlogits, logits (rows, vocabulary), which may be one array; log_sum_exp, targets (rows,); dloss, count (1,), where a null count
// says that all targets are valid. A block for each row.
extern "C" __global__ void __launch_bounds__(512, 2) rows_backward_int32(
    stored_t* dlogits, const float* log_sum_exp, const float* dloss, const stored_t* logits, const int* targets,
    const index_t* count, index_t rows, index_t vocabulary, index_t ignore_index, int has_ignored) {
  rows_backward(dlogits, log_sum_exp, dloss, logits, targets, count, rows, vocabulary, ignore_index, has_ignored);
}

extern "C" __global__ void __launch_bounds__(512, 2) rows_backward_int64(
    stored_t* dlogits, const float* log_sum_exp, const float* dloss, const stored_t* logits, const index_t* targets,
    const index_t* count, index_t rows, index_t vocabulary, index_t ignore_index, int has_ignored) {
  rows_backward(dlogits, log_sum_exp, dloss, logits, targets, count, rows, vocabulary, ignore_index, has_ignored);
}
