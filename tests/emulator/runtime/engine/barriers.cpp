// Barriers of a block, with the predicate counts of __syncthreads_count and its kin.
#include "state.h"

namespace emulator {

namespace {

// One is filled by the threads that arrive, the other still read by threads that were released and have not run yet.
int predicate_counts[2];

}  // namespace

void reset_barriers() { predicate_counts[0] = predicate_counts[1] = 0; }

void release_barrier() {
  launch.epoch++;
  predicate_counts[launch.epoch & 1] = 0;
  for (unsigned i = 0; i < launch.thread_count; i++) fibers[i].status = ThreadStatus::ready;
}

}  // namespace emulator

extern "C" int emulator_block_barrier(int predicate, const char* operation, const char* file, int line) {
  using namespace emulator;
  int& count = predicate_counts[launch.epoch & 1];
  count += predicate != 0;
  Fiber& self = current_fiber();
  self.status = ThreadStatus::at_barrier;
  self.operation = operation;
  self.file = file;
  self.line = line;
  yield_fiber();
  return count;
}
