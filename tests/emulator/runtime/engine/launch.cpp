// The one entry point of a launch. Grid, block and argument limits are the caller's to check.
#include "device_memory.h"
#include "race_checker.h"
#include "reports.h"
#include "shared_memory.h"
#include "state.h"

// Runs a kernel. Returns whether nothing was reported.
extern "C" bool emulator_launch(
    const emulator::KernelDescription* kernel, const unsigned* grid, const unsigned* block, size_t dynamic_shared_bytes,
    void** arguments, int order, bool checking, double time_limit_seconds) {
  using namespace emulator;
  clear_reports();
  emulator_grid_dimensions = dim3(grid[0], grid[1], grid[2]);
  emulator_block_dimensions = dim3(block[0], block[1], block[2]);
  launch.kernel = kernel;
  launch.arguments = arguments;
  launch.thread_count = block[0] * block[1] * block[2];
  launch.warp_count = (launch.thread_count + warp_size - 1) / warp_size;
  launch.block_count = static_cast<size_t>(grid[0]) * grid[1] * grid[2];
  launch.order = order;
  launch.checking = checking;
  launch.stopped = false;
  prepare_fibers(launch.thread_count);
  prepare_shared_memory(dynamic_shared_bytes);
  begin_race_check(launch.block_count);
  run_guarded(time_limit_seconds);
  end_race_check(launch.block_count);
  check_surroundings();
  return !any_reports();
}
