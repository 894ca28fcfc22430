// What a compiled kernel module and the emulator's engine know of each other: plain data and C functions.
#pragma once
#include <vector_types.h>

#include <cstddef>
#include <cstdint>

namespace emulator {

constexpr unsigned warp_size = 32;
constexpr unsigned maximum_threads = 1024;  // of a block

// The built-in variables of one CUDA thread.
struct ThreadState {
  uint3 index;      // threadIdx
  unsigned lane;    // 0..31
  unsigned linear;  // position in the block
};

// One parameter of a kernel. Codes: p pointer, f floating point, i signed and u unsigned integer, b bool, h __half,
// n __nv_bfloat16, s any other class, v void. The last four fields describe what a pointer points to.
struct Parameter {
  char code;
  char pointee_code;
  bool pointee_is_const;
  unsigned size;
  unsigned pointee_size;
  const char* type;
};

struct KernelDescription {
  const char* name;
  void (*call)(void** arguments);
  void* (*touch_shared_storage)();  // makes the calling OS thread's storage of the module's __shared__ variables exist
  const Parameter* parameters;
  unsigned parameter_count;
  unsigned maximum_threads;  // of __launch_bounds__, or 0
};

}  // namespace emulator

extern "C" {
extern emulator::ThreadState* emulator_thread;
extern uint3 emulator_block_index;
extern dim3 emulator_block_dimensions, emulator_grid_dimensions;

// Waits for every thread of the block; returns how many of them came with a predicate other than zero.
int emulator_block_barrier(int predicate, const char* operation, const char* file, int line);

// Waits for the lanes of the mask; returns what each lane brought (32 values). Takes lanes that do not exist out of
// `mask`. The values are valid until the calling lane's next exchange.
const uint64_t* emulator_warp_exchange(
    unsigned* mask, uint64_t value, const char* operation, const char* file, int line);

unsigned emulator_active_lanes();
void* emulator_dynamic_shared_memory();

// Tells the checks of an atomic operation before it happens. `caller` is the address of the code that asked for it.
void emulator_atomic_access(const void* address, unsigned size, bool uses_old_value, const void* caller);

// Ends the launch with a report on the calling thread.
[[noreturn]] void emulator_stop(const char* kind, const char* message, const char* file, int line);
}
