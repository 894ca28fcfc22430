// Layer norm and RMS norm over rows of `columns` elements. Forward, and backward over rows that are wide, one block works on a
// row at a time, because a row is read two or three times and then still lies in the cache. Each thread works on the same
// columns of every row.
#include "rows.cuh"

// y = (x - mean) rstd (weight + unit_offset) + bias; RMS norm is not CENTRED: its mean counts as 0.
template <int WIDTH, bool CENTRED>
__device__ __forceinline__ void norm_forward(
    stored_t* output, float* means, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias,
    index_t rows, index_t columns, float epsilon, float unit_offset) {
  const index_t first = threadIdx.x * WIDTH, step = blockDim.x * WIDTH;
  for (index_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const stored_t* source = x + row * columns;
    float values[WIDTH], factors[WIDTH], offsets[WIDTH], mean = 0.0f, squares = 0.0f;
    if constexpr (CENTRED) {
      float sum = 0.0f;
      for (index_t i = first; i < columns; i += step) {
        load_some<WIDTH>(values, source + i);
        for (int k = 0; k < WIDTH; k++) sum += values[k];
      }
      mean = block_sum(sum) / columns;
    }
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(values, source + i);
      for (int k = 0; k < WIDTH; k++) squares += (values[k] - mean) * (values[k] - mean);
    }
    const float rstd = 1.0f / sqrtf(block_sum(squares) / columns + epsilon);
    if (threadIdx.x == 0) {
      if (means != nullptr) means[row] = mean;
      if (rstds != nullptr) rstds[row] = rstd;
    }
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(values, source + i);
      if (weight != nullptr) load_some<WIDTH>(factors, weight + i);
      if (bias != nullptr) load_some<WIDTH>(offsets, bias + i);
      for (int k = 0; k < WIDTH; k++) {
        values[k] = (values[k] - mean) * rstd;
        if (weight != nullptr) values[k] *= factors[k] + unit_offset;
        if (bias != nullptr) values[k] += offsets[k];
      }
      store_some<WIDTH>(output + row * columns + i, values);
    }
  }
}

template <bool CENTRED>
__device__ __forceinline__ void choose_norm_forward(
    stored_t* output, float* means, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias,
    index_t rows, index_t columns, float epsilon, float unit_offset) {
  if (columns % VECTOR == 0 && is_aligned(output) && is_aligned(x) && is_aligned(weight) && is_aligned(bias))
    norm_forward<VECTOR, CENTRED>(output, means, rstds, x, weight, bias, rows, columns, epsilon, unit_offset);
  else
    norm_forward<1, CENTRED>(output, means, rstds, x, weight, bias, rows, columns, epsilon, unit_offset);
}

// output, x (rows, columns); means, rstds (rows,) or null; weight, bias (columns,) or null. A block for each row.
extern "C" __global__ void __launch_bounds__(512, 2) layer_norm_forward(
    stored_t* output, float* means, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias,
    index_t rows, index_t columns, float epsilon) {
  choose_norm_forward<true>(output, means, rstds, x, weight, bias, rows, columns, epsilon, 0.0f);
}

// As above, without means.
extern "C" __global__ void __launch_bounds__(512, 2) rms_norm_forward(
    stored_t* output, float* rstds, const stored_t* x, const stored_t* weight, const stored_t* bias, index_t rows,
    index_t columns, float epsilon, float unit_offset) {
  choose_norm_forward<false>(output, nullptr, rstds, x, weight, bias, rows, columns, epsilon, unit_offset);
}

// ---- backward, rows that threads hold in registers -------------------------------------------------------------------
constexpr int HELD = 8;  // elements of a row that a thread holds

// The warps of a block in teams, each of which works on one row at a time.
struct Team {
  int warps, number, count, first_warp;
  index_t member;

  __device__ __forceinline__ explicit Team(int warps_of_a_team)
      : warps(warps_of_a_team), number(threadIdx.x / WARP / warps_of_a_team), count(blockDim.x / WARP / warps_of_a_team),
        first_warp(number * warps_of_a_team), member(threadIdx.x - first_warp * WARP) {}

  // body(part, column) for the WIDTH columns from each `column` on that the thread has of a row.
  template <int WIDTH, typename Body>
  __device__ __forceinline__ void for_parts(index_t columns, Body body) const {
#pragma unroll
    for (int part = 0; part < HELD / WIDTH; part++) {
      const index_t column = (part * warps * WARP + member) * WIDTH;
      if (column < columns) body(part, column);
    }
  }

  // The sums of both numbers over a team, in every thread of it. All threads of the block take part, `turn` by turn.
  __device__ __forceinline__ float2 sum(float2 own, int turn) const {
    __shared__ float2 partial[2][MOST_WARPS];  // by turns: nobody writes where others still read
    own = make_float2(warp_sum(own.x), warp_sum(own.y));
    if (warps == 1) return own;
    if (threadIdx.x % WARP == 0) partial[turn % 2][threadIdx.x / WARP] = own;
    __syncthreads();
    float2 all = make_float2(0.0f, 0.0f);
    for (int other = first_warp; other < first_warp + warps; other++) {
      all.x += partial[turn % 2][other].x;
      all.y += partial[turn % 2][other].y;
    }
    return all;
  }
};

// One row as a thread holds it: as it is stored, so that the next rows are under way while this one is worked on.
template <int WIDTH, bool CENTRED>
struct HeldRow {
  static constexpr int PARTS = HELD / WIDTH;
  Run<stored_t, WIDTH> upstream[PARTS], values[PARTS];
  float mean, rstd;

  __device__ __forceinline__ void read(
      const stored_t* dy, const stored_t* x, const float* means, const float* rstds, index_t row, index_t last,
      index_t columns, const Team& team) {
    if (row >= last) return;
    mean = CENTRED ? means[row] : 0.0f;
    rstd = rstds[row];
    team.for_parts<WIDTH>(columns, [&](int part, index_t column) {
      copy_run<WIDTH>(upstream[part].elements, dy + row * columns + column);
      copy_run<WIDTH>(values[part].elements, x + row * columns + column);
    });
  }
};

// Adds up a block's sums, team after team, in partial (columns,); null where nobody wants them. All threads take part.
template <int WIDTH>
__device__ __forceinline__ void add_teams(
    float* partial, const float (&sums)[HELD / WIDTH][WIDTH], index_t columns, const Team& team, float* shared) {
  if (partial == nullptr) return;
  __syncthreads();
  team.for_parts<WIDTH>(columns, [&](int part, index_t column) {
    for (int k = 0; k < WIDTH; k++) shared[team.number * columns + column + k] = sums[part][k];
  });
  __syncthreads();
  for (index_t i = threadIdx.x; i < columns; i += blockDim.x) {
    float sum = 0.0f;
    for (int other = 0; other < team.count; other++) sum += shared[other * columns + i];
    partial[i] = sum;
  }
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy (weight + unit_offset) and xhat = (x - mean) rstd; not CENTRED,
// mean and mean(g) are 0. Block c works on rows_per_chunk rows and leaves the sums over them of dy xhat and of dy in
// row c of weight_partial and bias_partial, where these are not null.
template <int WIDTH, bool CENTRED>
__device__ __forceinline__ void norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    int team_warps, float* shared) {
  constexpr int PARTS = HELD / WIDTH, AHEAD = WIDTH == 8 ? 2 : 1;  // rows under way: of half precision more
  const Team team(team_warps);
  const index_t start = blockIdx.x * rows_per_chunk, last = min(rows, start + rows_per_chunk);
  float weight_sums[PARTS][WIDTH] = {}, bias_sums[PARTS][WIDTH] = {};
  HeldRow<WIDTH, CENTRED> held[AHEAD + 1];
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    held[i].read(dy, x, means, rstds, start + team.number + i * team.count, last, columns, team);
  int turn = 0;
  for (index_t first = start; first < last; first += team.count, turn++) {
    const index_t row = first + team.number;
    held[AHEAD].read(dy, x, means, rstds, row + AHEAD * team.count, last, columns, team);
    const HeldRow<WIDTH, CENTRED> own = held[0];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) held[i] = held[i + 1];
    float g[PARTS][WIDTH], hats[PARTS][WIDTH], factors[WIDTH];
    float2 sums = make_float2(0.0f, 0.0f);
    team.for_parts<WIDTH>(columns, [&](int part, index_t column) {
      if (row >= last) return;
      if (weight != nullptr) load_some<WIDTH>(factors, weight + column);
      for (int k = 0; k < WIDTH; k++) {
        const float upstream = load(&own.upstream[part].elements[k]);
        hats[part][k] = (load(&own.values[part].elements[k]) - own.mean) * own.rstd;
        g[part][k] = weight == nullptr ? upstream : upstream * (factors[k] + unit_offset);
        sums.x += g[part][k];
        sums.y += g[part][k] * hats[part][k];
        weight_sums[part][k] += upstream * hats[part][k];
        bias_sums[part][k] += upstream;
      }
    });
    sums = team.sum(sums, turn);
    const float average = CENTRED ? sums.x / columns : 0.0f, along = sums.y / columns;
    team.for_parts<WIDTH>(columns, [&](int part, index_t column) {
      if (row >= last) return;
      for (int k = 0; k < WIDTH; k++) g[part][k] = own.rstd * (g[part][k] - average - hats[part][k] * along);
      store_some<WIDTH>(dx + row * columns + column, g[part]);
    });
  }
  const index_t chunk = blockIdx.x * columns;
  add_teams<WIDTH>(weight_partial == nullptr ? nullptr : weight_partial + chunk, weight_sums, columns, team, shared);
  add_teams<WIDTH>(bias_partial == nullptr ? nullptr : bias_partial + chunk, bias_sums, columns, team, shared);
}

template <bool CENTRED>
__device__ __forceinline__ void choose_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    int team_warps, float* shared) {
  if (columns % VECTOR == 0 && is_aligned(dx) && is_aligned(dy) && is_aligned(x) && is_aligned(weight))
    norm_backward<VECTOR, CENTRED>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns,
                                   unit_offset, rows_per_chunk, team_warps, shared);
  else
    norm_backward<1, CENTRED>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns, unit_offset,
                              rows_per_chunk, team_warps, shared);
}

// dx, dy, x (rows, columns); means, rstds (rows,); weight (columns,) or null; partials (chunks, columns) or null. A block
// for each chunk of rows, whose warps work in teams of team_warps: at least one for 32 * HELD columns. Dynamic shared memory:
// `columns` floats for each team.
extern "C" __global__ void __launch_bounds__(512, 1) layer_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, index_t rows_per_chunk, int team_warps) {
  extern __shared__ float shared[];
  choose_norm_backward<true>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns, 0.0f,
                             rows_per_chunk, team_warps, shared);
}

// As above, without means.
extern "C" __global__ void __launch_bounds__(512, 1) rms_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* rstds, const stored_t* dy, const stored_t* x,
    const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk, int team_warps) {
  extern __shared__ float shared[];
  choose_norm_backward<false>(dx, weight_partial, bias_partial, nullptr, rstds, dy, x, weight, rows, columns,
                              unit_offset, rows_per_chunk, team_warps, shared);
}

// ---- backward, rows of any width -------------------------------------------------------------------------------------
// Where a block adds up the gradients of its columns. A thread touches its own columns alone, so nothing is guarded.
// In shared memory the elements of a vector lie apart, so that the threads of a warp meet different banks.
struct ColumnSums {
  float* sums;
  index_t vector_step, element_step;

  template <int WIDTH>
  __device__ __forceinline__ float* at(index_t column, int element) const {
    return sums + column / WIDTH * vector_step + element * element_step;
  }
};

// As norm_backward.
template <int WIDTH, bool CENTRED>
__device__ __forceinline__ void wide_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    bool sums_in_shared, float* shared) {
  const index_t first = threadIdx.x * WIDTH, step = blockDim.x * WIDTH, chunk = blockIdx.x * columns;
  ColumnSums weight_sums{weight_partial + chunk, WIDTH, 1}, bias_sums{bias_partial + chunk, WIDTH, 1};
  if (sums_in_shared) {
    weight_sums = {shared, 1, columns / WIDTH};
    bias_sums = {weight_partial == nullptr ? shared : shared + columns, 1, columns / WIDTH};
  }
  for (index_t i = first; i < columns; i += step) {
    for (int k = 0; k < WIDTH; k++) {
      if (weight_partial != nullptr) *weight_sums.at<WIDTH>(i, k) = 0.0f;
      if (bias_partial != nullptr) *bias_sums.at<WIDTH>(i, k) = 0.0f;
    }
  }
  const index_t last = min(rows, (blockIdx.x + 1) * rows_per_chunk);
  for (index_t row = blockIdx.x * rows_per_chunk; row < last; row++) {
    const float mean = CENTRED ? means[row] : 0.0f, rstd = rstds[row];
    float upstream[WIDTH], normal[WIDTH], factors[WIDTH], sum = 0.0f, along = 0.0f;
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(upstream, dy + row * columns + i);
      load_some<WIDTH>(normal, x + row * columns + i);
      if (weight != nullptr) load_some<WIDTH>(factors, weight + i);
      for (int k = 0; k < WIDTH; k++) {
        const float g = weight == nullptr ? upstream[k] : upstream[k] * (factors[k] + unit_offset);
        sum += g;
        along += g * ((normal[k] - mean) * rstd);
      }
    }
    const float average = CENTRED ? block_sum(sum) / columns : 0.0f;
    along = block_sum(along) / columns;
    for (index_t i = first; i < columns; i += step) {
      load_some<WIDTH>(upstream, dy + row * columns + i);
      load_some<WIDTH>(normal, x + row * columns + i);
      if (weight != nullptr) load_some<WIDTH>(factors, weight + i);
      for (int k = 0; k < WIDTH; k++) {
        const float hat = (normal[k] - mean) * rstd;
        const float g = weight == nullptr ? upstream[k] : upstream[k] * (factors[k] + unit_offset);
        if (weight_partial != nullptr) *weight_sums.at<WIDTH>(i, k) += upstream[k] * hat;
        if (bias_partial != nullptr) *bias_sums.at<WIDTH>(i, k) += upstream[k];
        normal[k] = rstd * (g - average - hat * along);
      }
      store_some<WIDTH>(dx + row * columns + i, normal);
    }
  }
  if (!sums_in_shared) return;
  for (index_t i = first; i < columns; i += step) {
    for (int k = 0; k < WIDTH; k++) {
      if (weight_partial != nullptr) weight_partial[chunk + i + k] = *weight_sums.at<WIDTH>(i, k);
      if (bias_partial != nullptr) bias_partial[chunk + i + k] = *bias_sums.at<WIDTH>(i, k);
    }
  }
}

template <bool CENTRED>
__device__ __forceinline__ void choose_wide_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    int sums_in_shared, float* shared) {
  if (columns % VECTOR == 0 && is_aligned(dx) && is_aligned(dy) && is_aligned(x) && is_aligned(weight))
    wide_norm_backward<VECTOR, CENTRED>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns,
                                        unit_offset, rows_per_chunk, sums_in_shared, shared);
  else
    wide_norm_backward<1, CENTRED>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns,
                                   unit_offset, rows_per_chunk, sums_in_shared, shared);
}

// As above, but for teams. Dynamic shared memory: `columns` floats for each partial, or none without sums_in_shared.
extern "C" __global__ void __launch_bounds__(512, 2) wide_layer_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* means, const float* rstds, const stored_t* dy,
    const stored_t* x, const stored_t* weight, index_t rows, index_t columns, index_t rows_per_chunk,
    int sums_in_shared) {
  extern __shared__ float shared[];
  choose_wide_norm_backward<true>(dx, weight_partial, bias_partial, means, rstds, dy, x, weight, rows, columns, 0.0f,
                                  rows_per_chunk, sums_in_shared, shared);
}

// As above, without means.
extern "C" __global__ void __launch_bounds__(512, 2) wide_rms_norm_backward(
    stored_t* dx, float* weight_partial, float* bias_partial, const float* rstds, const stored_t* dy, const stored_t* x,
    const stored_t* weight, index_t rows, index_t columns, float unit_offset, index_t rows_per_chunk,
    int sums_in_shared) {
  extern __shared__ float shared[];
  choose_wide_norm_backward<false>(dx, weight_partial, bias_partial, nullptr, rstds, dy, x, weight, rows, columns,
                                   unit_offset, rows_per_chunk, sums_in_shared, shared);
}
