// Rotary position embeddings (Su et al. 2021), half-split: element i of a head turns together with i + R / 2.
#include "row_positions.cuh"

constexpr int MOST_FREQUENCIES = 64;

struct Frequencies {
  double value[MOST_FREQUENCIES];
};

// table (positions, half): columns first to first + count, the cosines or sines of position * frequency.
// In double, rounded once. One thread per entry, grid-stride.
extern "C" __global__ void rope_table(
    float* table, index_t positions, int half, int first, int count, Frequencies frequencies, int is_sine) {
  for (index_t i = thread_index(); i < positions * count; i += thread_count()) {
    const index_t position = i / count;
    const int column = static_cast<int>(i % count);
    const double angle = static_cast<double>(position) * frequencies.value[column];
    table[position * half + first + column] = static_cast<float>(is_sine ? sin(angle) : cos(angle));
  }
}

struct RopeSizes {
  index_t length;     // T
  index_t positions;  // B T
  int width;          // W: all heads of a position
  int heads;          // that turn; they come first
  int size;           // D: elements of a head
  int half;           // R / 2: pairs of a head
};

// N angles, which are float32 beside any stored type: a vector of stored elements may have several vectors of them.
template <int N>
__device__ __forceinline__ void load_angles(float* values, const float* address) {
  if constexpr (N == 1) {
    values[0] = *address;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += Vector<float>::LENGTH) load_vector(values + i, address + i);
  }
}

// N elements of each half of a head at a time.
template <int N>
__device__ __forceinline__ void turn(stored_t* output, const stored_t* x, const float* cosine, const float* sine,
                                     int half, float direction) {
  float first[N], second[N], c[N], s[N];
  load_some<N>(first, x), load_some<N>(second, x + half), load_angles<N>(c, cosine), load_angles<N>(s, sine);
  float turned_first[N], turned_second[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float angle_sine = direction * s[i];
    turned_first[i] = first[i] * c[i] - second[i] * angle_sine;
    turned_second[i] = second[i] * c[i] + first[i] * angle_sine;
  }
  store_some<N>(output, turned_first), store_some<N>(output + half, turned_second);
}

template <int N>
__device__ __forceinline__ void copy(stored_t* output, const stored_t* x) {
  if constexpr (N == 1) *output = *x;
  else *reinterpret_cast<Vector<stored_t>*>(output) = *reinterpret_cast<const Vector<stored_t>*>(x);
}

// Positions go over blockIdx.x and threadIdx.y, the pairs of a position over threadIdx.x. What does not turn is copied,
// unless output is x: then every thread reads and writes only its own pairs.
template <int N>
__device__ __forceinline__ void turn_rows(stored_t* output, const stored_t* x, const float* cosine, const float* sine,
                                          const RowPositions& rows, const RopeSizes& sizes, float direction) {
  const int pairs = sizes.half / N, rest = (sizes.size - 2 * sizes.half) / N;
  const int turning_width = sizes.heads * sizes.size, others = (sizes.width - turning_width) / N;
  // The grid is no larger than what runs at once, so that 32 bits hold where a thread begins.
  for (index_t position = blockIdx.x * blockDim.y + threadIdx.y; position < sizes.positions;
       position += static_cast<index_t>(gridDim.x) * blockDim.y) {
    const index_t row = position / sizes.length;
    const index_t angles = (rows.start[row] + position % sizes.length) * sizes.half;
    stored_t* const target = output + position * sizes.width;
    const stored_t* const source = x + position * sizes.width;
    for (int i = threadIdx.x; i < sizes.heads * pairs; i += blockDim.x) {
      const int pair = i % pairs * N, element = i / pairs * sizes.size + pair;
      turn<N>(target + element, source + element, cosine + angles + pair, sine + angles + pair, sizes.half, direction);
    }
    if (output == x) continue;
    for (int i = threadIdx.x; i < sizes.heads * rest; i += blockDim.x) {
      const int element = i / rest * sizes.size + 2 * sizes.half + i % rest * N;
      copy<N>(target + element, source + element);
    }
    for (int i = threadIdx.x; i < others; i += blockDim.x)
      copy<N>(target + turning_width + i * N, source + turning_width + i * N);
  }
}

// output, x (B, T, W); cosine, sine (positions, half). Rows of B by value, the sine with a sign: -1 turns back.
extern "C" __global__ void __launch_bounds__(256) rope(
    stored_t* output, const stored_t* x, const float* cosine, const float* sine, RowPositions rows, RopeSizes sizes,
    float direction) {
  const bool has_vectors = sizes.half % VECTOR == 0 && sizes.size % VECTOR == 0 && sizes.width % VECTOR == 0 &&
                           is_aligned(output) && is_aligned(x) && is_aligned(cosine) && is_aligned(sine);
  if (has_vectors) turn_rows<VECTOR>(output, x, cosine, sine, rows, sizes, direction);
  else turn_rows<1>(output, x, cosine, sine, rows, sizes, direction);
}
