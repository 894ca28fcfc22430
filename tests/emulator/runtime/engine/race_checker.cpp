// For each granule of memory (4 bytes, or fewer where smaller accesses were seen) and kind of access: which lanes of
// the two warps that came last have touched it, when, and which other block has. Two accesses of which one writes conflict
//   - in different blocks, always: nothing orders the blocks of a launch;
//   - in different warps of a block, unless a barrier lies between (their epochs differ);
//   - in different lanes of a warp, unless a barrier or a warp operation of both lanes lies between.
// Blocks and warps run one after the other here, so that this finds conflicts whatever the order of execution was.
#include "race_checker.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reports.h"
#include "state.h"

namespace emulator {

namespace {

struct Touch {  // by lanes of one warp at one time; a serial of an earlier launch, or 0: none
  uint32_t block_serial, epoch, warp, time, lanes, caller;
};

struct ForeignTouch {
  uint32_t block_serial, caller;
};

struct Touches {  // of one kind of access
  Touch latest[2];  // by different warps of one block
  ForeignTouch other_block;
};

struct Granule {
  Touches touches[3];  // by Access
};

struct Page {
  size_t granule_bytes;
  std::vector<Granule> granules;
};

constexpr size_t page_bytes_checked = 1024, largest_granule = 4, most_pages = 4096;

std::unordered_map<uintptr_t, Page> pages;
uintptr_t cached_number = ~uintptr_t{0};
Page* cached_page;
uint32_t first_serial = 1;  // of the launch in progress

void forget_everything() {
  pages.clear();
  cached_number = ~uintptr_t{0};
}

// The page, in granules of the given size or smaller.
Page& page_at(uintptr_t address, size_t granule_bytes) {
  const uintptr_t number = address / page_bytes_checked;
  if (number != cached_number) {
    cached_page = &pages[number];
    cached_number = number;
  }
  Page& page = *cached_page;
  if (page.granules.empty()) {
    page.granule_bytes = granule_bytes;
    page.granules.resize(page_bytes_checked / granule_bytes);
  } else if (page.granule_bytes > granule_bytes) {
    std::vector<Granule> split;
    split.reserve(page_bytes_checked / granule_bytes);
    for (const Granule& granule : page.granules)
      split.insert(split.end(), page.granule_bytes / granule_bytes, granule);
    page.granules = std::move(split);
    page.granule_bytes = granule_bytes;
  }
  return page;
}

bool is_current(uint32_t block_serial) { return block_serial >= first_serial; }

unsigned current_warp_number() { return emulator_thread->linear / warp_size; }

// The lanes of a touch by the current block that may run at the same time as what the current thread does now.
unsigned unordered_lanes(const Touch& touch) {
  if (touch.block_serial != launch.block_serial || touch.epoch != launch.epoch) return 0;
  if (touch.warp != current_warp_number()) return touch.lanes;
  unsigned unordered = 0;
  for (unsigned rest = touch.lanes & ~(1u << emulator_thread->lane); rest; rest &= rest - 1)
    if (!happened_before(__builtin_ctz(rest), touch.time)) unordered |= rest & -rest;
  return unordered;
}

void record(Touches& touches, uintptr_t caller) {
  const unsigned warp = current_warp_number(), bit = 1u << emulator_thread->lane;
  const Touch now{launch.block_serial, launch.epoch, warp, warp_clock(), bit, static_cast<uint32_t>(caller)};
  Touch &first = touches.latest[0], &second = touches.latest[1];
  if (first.block_serial != now.block_serial) {
    if (is_current(first.block_serial)) touches.other_block = {first.block_serial, first.caller};
    first = now;
    second = {};
    return;
  }
  if (first.warp != warp) std::swap(first, second);
  const bool same_warp = first.block_serial == now.block_serial && first.warp == warp;
  if (same_warp && first.epoch == now.epoch && first.time == now.time) {
    first.lanes |= bit;  // the caller stays that of the lane that came first
  } else {
    first = now;
  }
}

std::string block_name(uint32_t block_serial) {
  const size_t block = block_serial - first_serial;
  const dim3& grid = emulator_grid_dimensions;
  return format("block (%zu,%zu,%zu)", block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y);
}

Finding conflict(Access access, Access other, const std::string& culprit, uint32_t caller) {
  return {"race", format("%s conflicts with %s by ", name_of(access), name_of(other)) + culprit, caller};
}

// The conflict of an access with what one kind of access left behind.
Finding compare(const Touches& touches, Access access, Access other, bool shared) {
  for (const Touch& touch : touches.latest) {
    if (!is_current(touch.block_serial)) continue;
    if (touch.block_serial != launch.block_serial) {
      if (shared) continue;  // another block has shared memory of its own
      return conflict(access, other, block_name(touch.block_serial), touch.caller);
    }
    if (const unsigned lanes = unordered_lanes(touch)) {
      const unsigned thread = touch.warp * warp_size + __builtin_ctz(lanes);
      return conflict(access, other, "thread " + thread_name(thread) + " of the same block", touch.caller);
    }
  }
  const ForeignTouch& elsewhere = touches.other_block;
  if (shared || !is_current(elsewhere.block_serial) || elsewhere.block_serial == launch.block_serial) return {};
  return conflict(access, other, block_name(elsewhere.block_serial), elsewhere.caller);
}

Finding check_granule(Granule& granule, Access access, bool shared, bool needs_value, uintptr_t caller) {
  Finding finding;
  for (Access other : {Access::write, Access::atomic, Access::read}) {
    if (access == other && access != Access::write) continue;  // reads do not conflict, nor do atomic operations
    finding = compare(granule.touches[static_cast<int>(other)], access, other, shared);
    if (finding.kind) break;
  }
  const auto written = [&](Access kind) {
    return granule.touches[static_cast<int>(kind)].latest[0].block_serial == launch.block_serial;
  };
  if (!finding.kind && shared && needs_value && !written(Access::write) && !written(Access::atomic))
    finding = {"uninitialised shared memory", format("%s of what the block has not written", name_of(access)), 0};
  record(granule.touches[static_cast<int>(access)], caller);
  return finding;
}

}  // namespace

const char* name_of(Access access) {
  return access == Access::read ? "read" : access == Access::write ? "write" : "atomic operation";
}

void begin_race_check(size_t blocks) {
  if (pages.size() > most_pages || blocks >= UINT32_MAX - first_serial) {
    forget_everything();
    first_serial = 1;
  }
  launch.block_serial = first_serial;
}

void end_race_check(size_t blocks) { first_serial += static_cast<uint32_t>(blocks); }

Finding check_access(uintptr_t address, size_t bytes, Access access, bool shared, bool needs_value, uintptr_t caller) {
  const size_t alignment = (address | bytes) & -(address | bytes);
  const size_t granule_bytes = std::min(alignment, largest_granule);
  Finding first;
  for (uintptr_t at = address; at < address + bytes;) {
    Page& page = page_at(at, granule_bytes);
    Granule& granule = page.granules[at % page_bytes_checked / page.granule_bytes];
    Finding finding = check_granule(granule, access, shared, needs_value, caller);
    if (finding.kind && !first.kind) first = std::move(finding);
    at += page.granule_bytes;
  }
  return first;
}

}  // namespace emulator
