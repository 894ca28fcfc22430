// What the kernels of attention share: tiles of positions in shared memory, and products of tiles.
//
// A block has 16 x 16 threads. Of a product with rows x columns results, thread (y, x) has a few neighbouring rows
// from y * ROWS on, and either the columns x, x + 16, ... (products over the elements of a head) or groups of four
// columns, 64 apart (sums of vectors). Tiles are float, whatever is stored. A row of a tile is four elements longer
// than it has to be: so the rows that eight neighbouring threads read, 16 bytes each, lie in different banks.
#pragma once

constexpr int SIDE = 16;
constexpr int THREADS = SIDE * SIDE;
constexpr int PAD = 4;    // elements behind a row of a tile
constexpr int QUAD = 4;   // elements that are read at a time
constexpr int GROUP = SIDE * QUAD;  // columns that the threads of a row cover with a quad each

// Sizes of a call, passed by value. Strides are in elements.
struct AttentionSizes {
  index_t rows;              // B
  index_t length;            // T: queries of a row
  index_t keys;              // S: keys of a row, or slots of its ring
  index_t query_stride;      // from a position to the next: of queries and their gradient,
  index_t key_stride;        // of keys, values and their gradients
  index_t key_head_stride;   // from a key/value head to the next
  index_t key_row_stride;    // from a row to the next
  index_t window;            // 0: none
  unsigned long long dropout_key;
  unsigned long long threshold;  // of dropout; 0: none
  float keep_factor;         // what weights that are kept are multiplied with
  float scale;
  int heads;                 // H
  int group;                 // query heads of a key/value head
  int size;                  // D
  int causal;
  int is_ring;               // keys and values lie in rings
};

// Columns of a tile that a row keeps: from `low` on, below `high`.
struct Range {
  int low, high;
  __device__ __forceinline__ bool has(int column) const { return column >= low && column < high; }
};
__device__ __forceinline__ int clamped(index_t value) {
  return static_cast<int>(max(-1LL, min(value, 1LL << 20)));  // tiles are smaller
}
// The keys of a tile, `key` the first, that a query sees, of the keys below `last`.
__device__ __forceinline__ Range keys_of(const AttentionSizes& sizes, index_t query, index_t key, index_t last) {
  const index_t high = sizes.causal ? min(last, query + 1) : last;
  return {sizes.window > 0 ? clamped(query - sizes.window + 1 - key) : 0, clamped(high - key)};
}
// The queries of a tile, `query` the first, that see a key.
__device__ __forceinline__ Range queries_of(const AttentionSizes& sizes, index_t key, index_t query) {
  const index_t high = sizes.window > 0 ? min(sizes.length, key + sizes.window) : sizes.length;
  return {sizes.causal ? clamped(key - query) : 0, clamped(high - query)};
}

__device__ __forceinline__ float4 read_quad(const float* address) { return *reinterpret_cast<const float4*>(address); }
__device__ __forceinline__ void write_quad(float* address, float a, float b, float c, float d) {
  *reinterpret_cast<float4*>(address) = make_float4(a, b, c, d);
}

struct alignas(QUAD * sizeof(stored_t)) StoredQuad {
  stored_t elements[QUAD];
};

// Vectors of one head, a position after the other.
template <typename Element>
struct Positions {
  Element* address;  // of position 0
  index_t stride;
  int size;

  // Whether quads may be read and written at once.
  __device__ __forceinline__ bool has_quads() const {
    const unsigned long long start = reinterpret_cast<unsigned long long>(address);
    return size % QUAD == 0 && stride % QUAD == 0 && start % sizeof(StoredQuad) == 0;
  }
  __device__ __forceinline__ Element* at(index_t first, int index) const { return address + (first + index) * stride; }
};

// The same in a ring: positions go on at the beginning, once.
template <typename Element>
struct Ring : Positions<Element> {
  index_t slots;

  __device__ __forceinline__ Element* at(index_t first, int index) const {
    const index_t slot = first + index;
    return this->address + (slot < slots ? slot : slot - slots) * this->stride;
  }
};

// tile (ROWS, SIZE) = factor times the `count` positions from `first` on; zero beyond them and beyond their size.
template <int SIZE, int ROWS, typename Source>
__device__ __forceinline__ void load_tile(float* tile, const Source& source, index_t first, int count, float factor) {
  constexpr int STEPS = SIZE / QUAD;
  const bool has_quads = source.has_quads();
#pragma unroll 2
  for (int i = threadIdx.x; i < ROWS * STEPS; i += THREADS) {
    const int row = i / STEPS, column = i % STEPS * QUAD;
    float values[QUAD] = {};
    if (row < count && column < source.size) {
      const stored_t* const address = source.at(first, row) + column;
      if (has_quads) {
        const StoredQuad quad = *reinterpret_cast<const StoredQuad*>(address);
#pragma unroll
        for (int j = 0; j < QUAD; j++) values[j] = load(&quad.elements[j]);
      } else {
#pragma unroll
        for (int j = 0; j < QUAD; j++)
          if (column + j < source.size) values[j] = load(address + j);
      }
    }
    write_quad(tile + row * (SIZE + PAD) + column, factor * values[0], factor * values[1], factor * values[2],
               factor * values[3]);
  }
}

// The `count` positions from `first` on = tile (count, SIZE).
template <int SIZE>
__device__ __forceinline__ void store_tile(
    const Positions<stored_t>& target, index_t first, int count, const float* tile) {
  constexpr int STEPS = SIZE / QUAD;
  const bool has_quads = target.has_quads();
#pragma unroll 1
  for (int i = threadIdx.x; i < count * STEPS; i += THREADS) {
    const int row = i / STEPS, column = i % STEPS * QUAD;
    if (column >= target.size) continue;
    stored_t* const address = target.at(first, row) + column;
    const float4 values = read_quad(tile + row * (SIZE + PAD) + column);
    if (has_quads) {
      StoredQuad quad;
      store(&quad.elements[0], values.x), store(&quad.elements[1], values.y);
      store(&quad.elements[2], values.z), store(&quad.elements[3], values.w);
      *reinterpret_cast<StoredQuad*>(address) = quad;
    } else {
      store(address, values.x);
      if (column + 1 < target.size) store(address + 1, values.y);
      if (column + 2 < target.size) store(address + 2, values.z);
      if (column + 3 < target.size) store(address + 3, values.w);
    }
  }
}

// What dropout multiplies this thread's weights with: tile[row][column] = factor. Weights are numbered as elements of (B,
// H, T, S): those of the tile from `first` on, a row `row_step` and a column `column_step` after the one before. A thread
// reads only what it wrote.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void draw_factors(
    float* tile, const AttentionSizes& sizes, unsigned long long first, index_t row_step, index_t column_step) {
  const int y = threadIdx.x / SIDE * ROWS, x = threadIdx.x % SIDE;
#pragma unroll 1
  for (int i = 0; i < ROWS; i++)
#pragma unroll 1
    for (int column = x; column < COLUMNS * SIDE; column += SIDE) {
      const unsigned long long number = first + (y + i) * row_step + column * column_step;
      const bool is_whole = is_kept(sizes.dropout_key, number, sizes.threshold);
      tile[(y + i) * (COLUMNS * SIDE + PAD) + column] = is_whole ? sizes.keep_factor : 0.0f;
    }
}

// results[i][j] = a[row i] . b[column j], for this thread's rows and columns; a, b (…, SIZE) are zero beyond `size`.
template <int SIZE, int ROWS, int COLUMNS>
__device__ __forceinline__ void multiply_tiles(
    float (&results)[ROWS][COLUMNS], const float* a, const float* b, int size) {
  const float* const rows = a + threadIdx.x / SIDE * ROWS * (SIZE + PAD);
  const float* const columns = b + threadIdx.x % SIDE * (SIZE + PAD);
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) results[i][j] = 0.0f;
#pragma unroll 1
  for (int d = 0; d < size; d += QUAD) {
    float4 left[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) left[i] = read_quad(rows + i * (SIZE + PAD) + d);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const float4 right = read_quad(columns + j * SIDE * (SIZE + PAD) + d);
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        results[i][j] += left[i].x * right.x;
        results[i][j] += left[i].y * right.y;
        results[i][j] += left[i].z * right.z;
        results[i][j] += left[i].w * right.w;
      }
    }
  }
}

// sums[i][...] += the sum over j of weights[row i][j] * vectors[j]; weights (…, COUNT), vectors (COUNT, SIZE).
// This thread has the columns x * 4 to x * 4 + 3 of each 64.
template <int SIZE, int COUNT, int ROWS>
__device__ __forceinline__ void add_vectors(
    float (&sums)[ROWS][SIZE / SIDE], const float* weights, const float* vectors) {
  constexpr int STRIDE = SIZE + PAD;
  const float* const rows = weights + threadIdx.x / SIDE * ROWS * (COUNT + PAD);
  const float* const columns = vectors + threadIdx.x % SIDE * QUAD;
#pragma unroll 1
  for (int j = 0; j < COUNT; j += QUAD) {
    float4 quads[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) quads[i] = read_quad(rows + i * (COUNT + PAD) + j);
#pragma unroll
    for (int part = 0; part < SIZE / GROUP; part++) {
      const float* const first = columns + j * STRIDE + part * GROUP;
      const float4 a = read_quad(first), b = read_quad(first + STRIDE), c = read_quad(first + 2 * STRIDE),
                   d = read_quad(first + 3 * STRIDE);
      // One expression for each column: choosing weights in a loop over the four positions takes the compiler ten
      // times as long.
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const float4 weight = quads[i];
        float* const sum = &sums[i][part * QUAD];
        sum[0] = sum[0] + weight.x * a.x + weight.y * b.x + weight.z * c.x + weight.w * d.x;
        sum[1] = sum[1] + weight.x * a.y + weight.y * b.y + weight.z * c.y + weight.w * d.y;
        sum[2] = sum[2] + weight.x * a.z + weight.y * b.z + weight.z * c.z + weight.w * d.z;
        sum[3] = sum[3] + weight.x * a.w + weight.y * b.w + weight.z * c.w + weight.w * d.w;
      }
    }
  }
}

// tile (…, SIZE): this thread's part of sums as add_vectors has them, times the row's factor.
template <int SIZE, int ROWS>
__device__ __forceinline__ void write_sums(
    float* tile, const float (&sums)[ROWS][SIZE / SIDE], const float (&factors)[ROWS]) {
  float* const target = tile + threadIdx.x / SIDE * ROWS * (SIZE + PAD) + threadIdx.x % SIDE * QUAD;
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int part = 0; part < SIZE / GROUP; part++) {
      const float* const quad = &sums[i][part * QUAD];
      const float factor = factors[i];
      write_quad(target + i * (SIZE + PAD) + part * GROUP, factor * quad[0], factor * quad[1], factor * quad[2],
                 factor * quad[3]);
    }
}

// Over the 16 threads that share rows, in each of them.
template <typename Operation>
__device__ __forceinline__ float side_reduce(float value) {
#pragma unroll
  for (int offset = SIDE / 2; offset > 0; offset /= 2)
    value = Operation::of(value, __shfl_xor_sync(ALL_LANES, value, offset));
  return value;
}
