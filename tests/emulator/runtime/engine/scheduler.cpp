// Runs the blocks of a launch one after the other, and the threads of a block up to one barrier after the other.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "reports.h"
#include "shared_memory.h"
#include "state.h"

namespace emulator {

Launch launch;

namespace {

std::mt19937 generator;
// Not local: the long jump that ends a launch would leave them behind.
std::vector<size_t> blocks;
std::vector<unsigned> warps, lanes;

// Fills in 0, 1, ... in the order of the launch.
template <class Element>
void arrange(std::vector<Element>& elements, size_t count) {
  elements.resize(count);
  for (size_t i = 0; i < elements.size(); i++) elements[i] = static_cast<Element>(i);
  if (launch.order == reverse_order) std::reverse(elements.begin(), elements.end());
  if (launch.order > reverse_order) std::shuffle(elements.begin(), elements.end(), generator);
}

void start_block(size_t block) {
  const dim3& grid = emulator_grid_dimensions;
  const dim3& size = emulator_block_dimensions;
  emulator_block_index = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
                          static_cast<unsigned>(block / grid.x / grid.y)};
  launch.epoch = 0;
  poison_shared_memory();
  reset_barriers();
  reset_warps();
  for (unsigned i = 0; i < launch.thread_count; i++) {
    Fiber& fiber = fibers[i];
    fiber.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    fiber.linear = i;
    fiber.lane = i % warp_size;
    start_fiber(fiber);
  }
}

// Runs each warp until all of its lanes have finished, wait at a barrier or can go no further.
void run_to_barrier() {
  for (unsigned warp : warps) {
    bool progress = true;
    while (progress) {
      progress = false;
      for (unsigned lane : lanes) {
        const unsigned i = warp * warp_size + lane;
        if (i >= launch.thread_count || fibers[i].status != ThreadStatus::ready) continue;
        progress = true;
        resume_fiber(fibers[i]);
        if (launch.stopped) return;
      }
    }
  }
}

void report_waiting(const char* kind, const Fiber& fiber, const std::string& message) {
  emulator_thread = const_cast<Fiber*>(&fiber);
  report_stop(kind, message, fiber.file, fiber.line);
}

// Whether the threads, none of which can run, wait at one barrier; else reports why they never will.
bool barrier_is_complete() {
  const Fiber* first = nullptr;
  unsigned finished = 0;
  for (unsigned i = 0; i < launch.thread_count; i++) {
    const Fiber& fiber = fibers[i];
    if (fiber.status == ThreadStatus::at_warp_operation) {
      report_waiting("warp operation", fiber, warp_deadlock(fiber));
      return false;
    }
    if (fiber.status == ThreadStatus::finished) {
      finished++;
    } else if (!first) {
      first = &fiber;
    } else if (first->line != fiber.line || strcmp(first->file, fiber.file) != 0) {
      report_waiting("divergent barrier", fiber, format("%s while thread %u of the block waits at %s in line %d",
                                                        fiber.operation, first->linear, first->operation, first->line));
      return false;
    }
  }
  if (first && finished) {
    report_waiting("barrier after exit", *first,
                   format("%s, which %u exited threads of the block never reach", first->operation, finished));
    return false;
  }
  return first != nullptr;
}

void run_block(size_t block) {
  start_block(block);
  for (;;) {
    arrange(warps, launch.warp_count);
    arrange(lanes, warp_size);
    run_to_barrier();
    if (launch.stopped || !barrier_is_complete()) return;
    release_barrier();
  }
}

}  // namespace

void run_blocks() {
  generator.seed(static_cast<unsigned>(launch.order));
  const uint32_t first_serial = launch.block_serial;
  arrange(blocks, launch.block_count);
  for (size_t block : blocks) {
    launch.block_serial = first_serial + static_cast<uint32_t>(block);
    run_block(block);
    if (launch.stopped) return;
  }
}

}  // namespace emulator
