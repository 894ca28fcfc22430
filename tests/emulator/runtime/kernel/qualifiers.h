// CUDA's declaration qualifiers. __CUDA_EMULATOR__ tells a kernel where it is, for code that only a GPU can compile.
#pragma once
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#undef __noinline__
#undef __grid_constant__

#define __CUDA_EMULATOR__ 1
#define __global__
#define __device__
#define __host__
// Thread-local storage of a module holds nothing but its __shared__ variables, so that the engine finds and poisons
// them as one block. (A section of their own would not do: g++ leaves static variables of templates out of it.)
// Constant initialisation: else g++ gives arrays of __half and its like a guard variable and sets them to zero.
#define __shared__ static __constinit __thread
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

// For code of the emulator inside a kernel module: what it reads and writes is none of the checks' business.
#define EMULATOR_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
// Keeps the compiler from moving memory accesses across a point where other CUDA threads run.
#define EMULATOR_COMPILER_FENCE() asm volatile("" ::: "memory")
