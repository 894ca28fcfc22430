// RMS norm of the query and key heads of packed rows (heads + 2 kv_heads) head_dim. Value heads are copied, or stay where they
// are if input and output are one array. A block for a row at a time, a warp for a head at a time, but for narrow heads backward.
#include "axes.cuh"
#include "rows.cuh"

// Heads `normed` to `all` of one row, by all threads of the block.
template <int WIDTH>
__device__ __forceinline__ void copy_values(
    stored_t* output, const stored_t* x, index_t row, index_t normed, index_t all, index_t head_dim) {
  float values[WIDTH];
  const index_t first = (row * all + normed) * head_dim, last = (row + 1) * all * head_dim;
  for (index_t i = first + threadIdx.x * WIDTH; i < last; i += blockDim.x * WIDTH) {
    load_some<WIDTH>(values, x + i);
    store_some<WIDTH>(output + i, values);
  }
}

template <int WIDTH>
__device__ __forceinline__ void forward(
    stored_t* output, stored_t* normal, float* rstds, const stored_t* x, const stored_t* query_weight,
    const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads, index_t head_dim, float epsilon) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const index_t normed = heads + kv_heads, all = normed + kv_heads;
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (index_t head = warp; head < normed; head += warps) {
      const stored_t* source = x + (row * all + head) * head_dim;
      stored_t* target = output + (row * all + head) * head_dim;
      const stored_t* weight = head < heads ? query_weight : key_weight;
      float values[WIDTH], factors[WIDTH], squares = 0.0f;
#pragma unroll 1  // most heads are a single round
      for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
        load_some<WIDTH>(values, source + i);
        for (int k = 0; k < WIDTH; k++) squares += values[k] * values[k];
      }
      const float rstd = 1.0f / sqrtf(warp_sum(squares) / head_dim + epsilon);
      if (rstds != nullptr && lane == 0) rstds[row * normed + head] = rstd;
#pragma unroll 1  // most heads are a single round
      for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
        load_some<WIDTH>(values, source + i);
        load_some<WIDTH>(factors, weight + i);
        for (int k = 0; k < WIDTH; k++) values[k] *= rstd;
        if (normal != nullptr) store_some<WIDTH>(normal + (row * normed + head) * head_dim + i, values);
        for (int k = 0; k < WIDTH; k++) values[k] *= factors[k];
        store_some<WIDTH>(target + i, values);
      }
    }
    if (output != x) copy_values<WIDTH>(output, x, row, normed, all, head_dim);
  }
}

// output, x (rows, (heads + 2 kv_heads) head_dim); normal (rows, (heads + kv_heads) head_dim) or null;
// rstds (rows, heads + kv_heads) or null; weights (head_dim,).
extern "C" __global__ void __launch_bounds__(256, 4) head_norm_forward(
    stored_t* output, stored_t* normal, float* rstds, const stored_t* x, const stored_t* query_weight,
    const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads, index_t head_dim, float epsilon) {
  if (head_dim % VECTOR == 0 && is_aligned(output) && is_aligned(normal) && is_aligned(x) && is_aligned(query_weight) &&
      is_aligned(key_weight))
    forward<VECTOR>(output, normal, rstds, x, query_weight, key_weight, rows, heads, kv_heads, head_dim, epsilon);
  else
    forward<1>(output, normal, rstds, x, query_weight, key_weight, rows, heads, kv_heads, head_dim, epsilon);
}

// ---- backward, heads that lanes hold in registers --------------------------------------------------------------------
constexpr int HELD = 8;  // elements of a head that a lane holds

// One head as a lane holds it: as it is stored, so that others are under way while this one is worked on.
template <int WIDTH>
struct HeldHead {
  static constexpr int PARTS = HELD / WIDTH;
  Run<stored_t, WIDTH> upstream[PARTS], normals[PARTS];
  float rstd;
};

// The query heads of a batch, or its key heads: `count` of each row from `first` on, of `normed` and of `all`.
struct Heads {
  index_t first, count, normed, all, size;

  // Where the index-th of them is in `normal` and rstds, and in packed rows.
  __device__ __forceinline__ void find(index_t index, index_t& saved, index_t& packed) const {
    const index_t head = first + divide(index, count);
    saved = index * normed + head;
    packed = (index * all + head) * size;
  }
};

// dx = rstd (g - normal mean(g normal)) with g = dy weight, for heads `begin` to `end`, by all threads of the block: `lanes` of
// them for a head at a time, a power of two of at most a warp. Leaves the sums of dy normal in partial (size,).
template <int WIDTH>
__device__ __forceinline__ void heads_backward(
    stored_t* dx, float* partial, const stored_t* normal, const float* rstds, const stored_t* dy, const stored_t* weight,
    const Heads& heads, index_t begin, index_t end, int lanes, float* shared) {
  constexpr int PARTS = HELD / WIDTH, AHEAD = WIDTH == 1 ? 0 : WIDTH / 4;  // heads under way; single elements fill registers
  const int member = threadIdx.x % lanes, team = threadIdx.x / lanes, teams = blockDim.x / lanes;
  float sums[PARTS][WIDTH] = {}, factors[PARTS][WIDTH] = {};
  HeldHead<WIDTH> held[AHEAD + 1];
  const auto for_parts = [&](auto body) {  // body(part, column) for the lane's columns
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const index_t column = (part * lanes + member) * WIDTH;
      if (column < heads.size) body(part, column);
    }
  };
  const auto read = [&](HeldHead<WIDTH>& head, index_t index) {
    if (index >= end) return;
    index_t saved, packed;
    heads.find(index, saved, packed);
    head.rstd = rstds[saved];
    for_parts([&](int part, index_t column) {
      copy_run<WIDTH>(head.upstream[part].elements, dy + packed + column);
      copy_run<WIDTH>(head.normals[part].elements, normal + saved * heads.size + column);
    });
  };
  for_parts([&](int part, index_t column) { load_some<WIDTH>(factors[part], weight + column); });
#pragma unroll
  for (int i = 0; i < AHEAD; i++) read(held[i], begin + team + i * teams);
#pragma unroll 1
  for (index_t first = begin; first < end; first += teams) {  // every warp to the end: its lanes exchange sums
    const index_t index = first + team;
    read(held[AHEAD], index + AHEAD * teams);
    const HeldHead<WIDTH> own = held[0];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) held[i] = held[i + 1];
    float along = 0.0f;
    for_parts([&](int part, index_t) {
      for (int k = 0; k < WIDTH; k++) {
        if (index >= end) continue;
        const float product = load(&own.upstream[part].elements[k]) * load(&own.normals[part].elements[k]);
        along += product * factors[part][k];
        sums[part][k] += product;
      }
    });
    for (int offset = lanes / 2; offset > 0; offset /= 2) along += __shfl_xor_sync(ALL_LANES, along, offset);
    along /= heads.size;
    if (index >= end) continue;
    index_t saved, packed;
    heads.find(index, saved, packed);
    for_parts([&](int part, index_t column) {
      float values[WIDTH];
      for (int k = 0; k < WIDTH; k++)
        values[k] = own.rstd * (load(&own.upstream[part].elements[k]) * factors[part][k] -
                                load(&own.normals[part].elements[k]) * along);
      store_some<WIDTH>(dx + packed + column, values);
    });
  }
  __syncthreads();  // the sums before these were added up
  for_parts([&](int part, index_t column) {
    for (int k = 0; k < WIDTH; k++) shared[team * heads.size + column + k] = sums[part][k];
  });
  __syncthreads();
  for (index_t i = threadIdx.x; i < heads.size; i += blockDim.x) {
    float sum = 0.0f;
    for (int other = 0; other < teams; other++) sum += shared[other * heads.size + i];
    partial[i] = sum;
  }
}

template <int WIDTH>
__device__ __forceinline__ void backward(
    stored_t* dx, float* partial, const stored_t* normal, const float* rstds, const stored_t* dy,
    const stored_t* query_weight, const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads,
    index_t head_dim, index_t rows_per_chunk, int lanes, float* shared) {
  const index_t normed = heads + kv_heads, all = normed + kv_heads;
  const index_t start = blockIdx.x * rows_per_chunk, last = min(rows, start + rows_per_chunk);
  float* const own = partial + blockIdx.x * 2 * head_dim;
#pragma unroll 1
  for (int kind = 0; kind < 2; kind++) {  // query heads, and then key heads
    const Heads some{kind == 0 ? 0 : heads, kind == 0 ? heads : kv_heads, normed, all, head_dim};
    heads_backward<WIDTH>(dx, own + kind * head_dim, normal, rstds, dy, kind == 0 ? query_weight : key_weight, some,
                          start * some.count, last * some.count, lanes, shared);
  }
  if (dx == dy) return;
  const index_t width = kv_heads * head_dim;
  float values[WIDTH];
  for (index_t i = start * width + threadIdx.x * WIDTH; i < last * width; i += blockDim.x * WIDTH) {
    index_t row = i;
    const index_t place = divide(row, width);
    load_some<WIDTH>(values, dy + (row * all + normed) * head_dim + place);
    store_some<WIDTH>(dx + (row * all + normed) * head_dim + place, values);
  }
}

// dx, dy, normal, rstds and weights as above; partial (chunks, 2, head_dim): sums of dy normal over the query heads and over
// the key heads of rows_per_chunk rows. A block for each chunk, with `lanes` threads for a head: at least one for HELD
// elements. Dynamic shared memory: head_dim floats for so many threads.
extern "C" __global__ void __launch_bounds__(512, 1) head_norm_backward(
    stored_t* dx, float* partial, const stored_t* normal, const float* rstds, const stored_t* dy,
    const stored_t* query_weight, const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads,
    index_t head_dim, index_t rows_per_chunk, int lanes) {
  extern __shared__ float shared[];
  if (head_dim % VECTOR == 0 && is_aligned(dx) && is_aligned(normal) && is_aligned(dy) && is_aligned(query_weight) &&
      is_aligned(key_weight))
    backward<VECTOR>(dx, partial, normal, rstds, dy, query_weight, key_weight, rows, heads, kv_heads, head_dim,
                     rows_per_chunk, lanes, shared);
  else
    backward<1>(dx, partial, normal, rstds, dy, query_weight, key_weight, rows, heads, kv_heads, head_dim,
                rows_per_chunk, lanes, shared);
}

// ---- backward, heads of any width ------------------------------------------------------------------------------------
// dx = rstd (g - normal mean(g normal)) with g = dy weight, over one head; adds dy normal to the warp's sums (head_dim,).
template <int WIDTH>
__device__ __forceinline__ void wide_head_backward(
    stored_t* dx, float* sums, const stored_t* normal, float rstd, const stored_t* dy, const stored_t* weight,
    index_t head_dim, int lane) {
  float upstream[WIDTH], normals[WIDTH], factors[WIDTH], along = 0.0f;
#pragma unroll 1
  for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
    load_some<WIDTH>(upstream, dy + i);
    load_some<WIDTH>(normals, normal + i);
    load_some<WIDTH>(factors, weight + i);
    for (int k = 0; k < WIDTH; k++) {
      const float product = upstream[k] * normals[k];
      along += product * factors[k];
      sums[i + k] += product;
    }
  }
  along = warp_sum(along) / head_dim;
#pragma unroll 1
  for (index_t i = lane * WIDTH; i < head_dim; i += WARP * WIDTH) {
    load_some<WIDTH>(upstream, dy + i);
    load_some<WIDTH>(normals, normal + i);
    load_some<WIDTH>(factors, weight + i);
    for (int k = 0; k < WIDTH; k++) upstream[k] = rstd * (upstream[k] * factors[k] - normals[k] * along);
    store_some<WIDTH>(dx + i, upstream);
  }
}

// A lane adds to its own elements of its warp's sums alone, until all sums of the block are added up, warp after warp.
template <int WIDTH>
__device__ __forceinline__ void wide_backward(
    stored_t* dx, float* partial, const stored_t* normal, const float* rstds, const stored_t* dy,
    const stored_t* query_weight, const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads,
    index_t head_dim, index_t rows_per_chunk, float* sums) {
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const index_t normed = heads + kv_heads, all = normed + kv_heads;
  for (index_t i = threadIdx.x; i < warps * 2 * head_dim; i += blockDim.x) sums[i] = 0.0f;
  __syncthreads();
  const index_t last = min(rows, (blockIdx.x + 1) * rows_per_chunk);
  for (index_t row = blockIdx.x * rows_per_chunk; row < last; row++) {
    for (index_t head = warp; head < normed; head += warps) {
      const index_t packed = (row * all + head) * head_dim, saved = row * normed + head;
      float* own = sums + (warp * 2 + (head < heads ? 0 : 1)) * head_dim;
      wide_head_backward<WIDTH>(dx + packed, own, normal + saved * head_dim, rstds[saved], dy + packed,
                           head < heads ? query_weight : key_weight, head_dim, lane);
    }
    if (dx != dy) copy_values<WIDTH>(dx, dy, row, normed, all, head_dim);
  }
  __syncthreads();
  for (index_t i = threadIdx.x; i < 2 * head_dim; i += blockDim.x) {
    float sum = 0.0f;
    for (int other = 0; other < warps; other++) sum += sums[other * 2 * head_dim + i];
    partial[blockIdx.x * 2 * head_dim + i] = sum;
  }
}

// As above, but for lanes. Dynamic shared memory: 2 head_dim floats for each warp.
extern "C" __global__ void __launch_bounds__(256, 4) wide_head_norm_backward(
    stored_t* dx, float* partial, const stored_t* normal, const float* rstds, const stored_t* dy,
    const stored_t* query_weight, const stored_t* key_weight, index_t rows, index_t heads, index_t kv_heads,
    index_t head_dim, index_t rows_per_chunk) {
  extern __shared__ float sums[];
  if (head_dim % VECTOR == 0 && is_aligned(dx) && is_aligned(normal) && is_aligned(dy) && is_aligned(query_weight) &&
      is_aligned(key_weight))
    wide_backward<VECTOR>(dx, partial, normal, rstds, dy, query_weight, key_weight, rows, heads, kv_heads, head_dim,
                     rows_per_chunk, sums);
  else
    wide_backward<1>(dx, partial, normal, rstds, dy, query_weight, key_weight, rows, heads, kv_heads, head_dim,
                rows_per_chunk, sums);
}
