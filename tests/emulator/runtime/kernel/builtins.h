// Built-in variables, barriers of a block, fences.
#pragma once

#define threadIdx (emulator_thread->index)
#define blockIdx emulator_block_index
#define blockDim emulator_block_dimensions
#define gridDim emulator_grid_dimensions
#define warpSize 32

// The default arguments name the caller's line in every report.
#define EMULATOR_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace emulator {

static inline int block_barrier(int predicate, const char* operation, const char* file, int line) {
  EMULATOR_COMPILER_FENCE();
  const int count = emulator_block_barrier(predicate, operation, file, line);
  EMULATOR_COMPILER_FENCE();
  return count;
}

}  // namespace emulator

static inline void __syncthreads(EMULATOR_SITE) { emulator::block_barrier(0, "__syncthreads", file, line); }

static inline int __syncthreads_count(int predicate, EMULATOR_SITE) {
  return emulator::block_barrier(predicate, "__syncthreads_count", file, line);
}

static inline int __syncthreads_or(int predicate, EMULATOR_SITE) {
  return emulator::block_barrier(predicate, "__syncthreads_or", file, line) != 0;
}

static inline int __syncthreads_and(int predicate, EMULATOR_SITE) {
  return emulator::block_barrier(!predicate, "__syncthreads_and", file, line) == 0;
}

// One OS thread runs everything, so that memory is always up to date; the checks take no notice of fences.
static inline void __threadfence_block() { EMULATOR_COMPILER_FENCE(); }
static inline void __threadfence() { EMULATOR_COMPILER_FENCE(); }
static inline void __threadfence_system() { EMULATOR_COMPILER_FENCE(); }

static inline long long clock64() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

#undef assert
#define assert(condition) \
  ((condition) ? static_cast<void>(0) : emulator_stop("assertion", #condition, __FILE__, __LINE__))

static inline void __trap(EMULATOR_SITE) { emulator_stop("trap", "__trap() was reached", file, line); }
