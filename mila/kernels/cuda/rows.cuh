// Loops over the elements of rows, for kernels that compute them one by one. A flat array is a single row.
//
// Grid and block, by elementwise.py: threads of a block are (x, y) over columns and rows, and so are the blocks of a
// grid, so that short rows share a block. Any grid covers everything: both loops stride.
#pragma once

// N elements that lie together, in as few accesses as their alignment allows.
template <typename Element, int N>
struct alignas(N * sizeof(Element) < 16 ? N * sizeof(Element) : 16) Run {
  Element elements[N];
};

template <int N, typename Element>
__device__ __forceinline__ void load_run(float (&values)[N], const Element* address) {
  const Run<Element, N> run = *reinterpret_cast<const Run<Element, N>*>(address);
#pragma unroll
  for (int i = 0; i < N; i++) values[i] = load(&run.elements[i]);
}

template <int N, typename Element>
__device__ __forceinline__ void store_run(Element* address, const float (&values)[N]) {
  Run<Element, N> run;
#pragma unroll
  for (int i = 0; i < N; i++) store(&run.elements[i], values[i]);
  *reinterpret_cast<Run<Element, N>*>(address) = run;
}

template <int N, typename Element>
__device__ __forceinline__ void copy_run(Element* output, const Element* x) {
  *reinterpret_cast<Run<Element, N>*>(output) = *reinterpret_cast<const Run<Element, N>*>(x);
}

// How many elements a call of a loop's body is for, as a type: decltype(width)::N.
template <int COUNT>
struct Width {
  static constexpr int N = COUNT;
};

// begin_row(row) returns what is called as body(column, width) for the row's elements from `column` on. `by_vectors`:
// whether the body may take VECTOR elements at a time. With several rows that wants rows of a multiple of VECTOR
// elements.
template <typename BeginRow>
__device__ __forceinline__ void for_rows(index_t rows, index_t columns, bool by_vectors, BeginRow begin_row) {
  const index_t step = static_cast<index_t>(gridDim.x) * blockDim.x, vectors = by_vectors ? columns / VECTOR : 0;
  const index_t first = static_cast<index_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const index_t row_step = static_cast<index_t>(gridDim.y) * blockDim.y;
  for (index_t row = static_cast<index_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += row_step) {
    auto body = begin_row(row);
#pragma unroll 1  // a vector per thread keeps the memory busy, and copies of the body cost time to compile
    for (index_t vector = first; vector < vectors; vector += step) body(vector * VECTOR, Width<VECTOR>());
#pragma unroll 1
    for (index_t column = vectors * VECTOR + first; column < columns; column += step) body(column, Width<1>());
  }
}

// body(index, width) for the elements of a flat array.
template <typename Body>
__device__ __forceinline__ void for_elements(index_t size, bool by_vectors, Body body) {
  for_rows(1, size, by_vectors, [&](index_t) { return body; });
}
