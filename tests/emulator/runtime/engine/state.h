// What the parts of the engine share: the launch in progress and its threads. There is one launch at a time.
#pragma once
#include <cstdint>
#include <string>

#include "../interface.h"

namespace emulator {

enum class ThreadStatus : uint8_t { ready, at_warp_operation, at_barrier, finished };

// A CUDA thread, run as a fiber: an execution stack of its own on the launching OS thread.
struct Fiber : ThreadState {
  void* stack_pointer;
  char* stack;  // lowest usable byte; a guard page lies below
  ThreadStatus status;
  const char* operation;  // the barrier or warp operation it waits at, and where that stands
  const char* file;
  int line;
};

constexpr size_t stack_bytes = 128 << 10;
constexpr size_t page_bytes = 4096;

enum Order { forward_order = 0, reverse_order = 1 };  // 2 and more: shuffled, with that seed

struct Launch {
  const KernelDescription* kernel;
  void** arguments;
  unsigned thread_count, warp_count;  // of a block
  size_t block_count;
  int order;
  bool checking;        // the module is instrumented: races, bounds, alignment, uninitialised shared memory
  bool running;         // kernel code may be executing
  bool stopped;         // an error that ends the launch was reported
  uint32_t epoch;       // barriers that the block has passed
  uint32_t block_serial;  // unlike any other block's, of any launch whose accesses are still remembered
};

extern Launch launch;
extern Fiber fibers[maximum_threads];

inline Fiber& current_fiber() { return *static_cast<Fiber*>(emulator_thread); }

// ---- fibers.cpp
void prepare_fibers(unsigned count);   // gives each a stack
void start_fiber(Fiber& fiber);        // lets it begin the kernel when it is resumed
void resume_fiber(Fiber& fiber);       // returns when it yields or has finished
void yield_fiber();                    // back to the scheduler
[[noreturn]] void abandon_fiber();     // back to the scheduler, for good

// ---- barriers.cpp, warps.cpp
void reset_barriers();
void release_barrier();
void reset_warps();
// Whether everything that `lane` of the current thread's warp did at `time` on the warp's clock is known to have
// happened before what the current thread does now.
bool happened_before(unsigned lane, uint32_t time);
uint32_t warp_clock();  // of the current thread's warp
std::string warp_deadlock(const Fiber& waiting);  // why its warp operation can never end

// ---- scheduler.cpp
void run_blocks();

// ---- signals.cpp
// Runs the blocks; a hardware fault or the time limit ends the launch with a report.
void run_guarded(double time_limit_seconds);

}  // namespace emulator
