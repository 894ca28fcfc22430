// Places of elements in arrays whose axes are visited in another order, or not all of them. Passed by value; axes.py
// fills it.
#pragma once

constexpr int MOST_AXES = 8;

struct Axes {
  index_t extents[MOST_AXES];
  index_t strides[MOST_AXES];  // in elements
  index_t count;
};

// The rest of a division, whose quotient replaces the dividend: in 32 bits where they do, several times faster.
__device__ __forceinline__ index_t divide(index_t& dividend, index_t divisor) {
  index_t rest;
  if ((dividend | divisor) >> 32 == 0) {
    const unsigned narrow = static_cast<unsigned>(dividend), by = static_cast<unsigned>(divisor);
    rest = narrow % by;
    dividend = narrow / by;
  } else {
    rest = dividend % divisor;
    dividend /= divisor;
  }
  return rest;
}

// Where the index-th of the places is, counted with the last axis fastest. Without axes there is one place, 0.
__device__ __forceinline__ index_t offset_of(const Axes& axes, index_t index) {
  index_t offset = 0;
#pragma unroll 1
  for (int axis = static_cast<int>(axes.count) - 1; axis > 0; axis--)
    offset += divide(index, axes.extents[axis]) * axes.strides[axis];
  return axes.count > 0 ? offset + index * axes.strides[0] : 0;
}
