// Warp operations: lanes that name the same mask meet, and every one of them gets what all have brought.
//
// For the race check each warp has a clock that advances with every meeting, and each lane knows up to which time it is
// ordered after each other lane. So a meeting of half a warp orders that half only.
#include <algorithm>
#include <cstring>

#include "reports.h"
#include "state.h"

namespace emulator {

namespace {

struct Meeting {
  unsigned mask, arrived, unread;  // lanes: taking part; come so far; released, but not yet resumed
  unsigned generation;
  const char* operation;
  const char* file;
  int line;
  uint64_t values[2][warp_size];  // by generation: the next meeting may begin before the last lane has read this one
};

struct Warp {
  Meeting meetings[warp_size];  // each lane is in one at most, so that one is always free
  uint32_t clock;
  uint32_t known[warp_size][warp_size];  // known[a][b]: what b did before that time happened before what a does now
};

Warp warps[maximum_threads / warp_size];

Warp& current_warp() { return warps[emulator_thread->linear / warp_size]; }

unsigned lanes_of_warp(unsigned warp) {
  const unsigned count = std::min(warp_size, launch.thread_count - warp * warp_size);
  return count == warp_size ? 0xffffffffu : (1u << count) - 1;
}

Meeting& meeting_with(Warp& warp, unsigned mask) {
  for (Meeting& meeting : warp.meetings)
    if (meeting.mask == mask) return meeting;
  for (Meeting& meeting : warp.meetings)
    if (!meeting.arrived && !meeting.unread) {
      meeting.mask = mask;
      return meeting;
    }
  emulator_stop("internal error", "no free meeting of lanes", nullptr, 0);
}

// Everything that a lane of the mask knew is now known to all of them, and so is everything that they did themselves.
void order_lanes(Warp& warp, unsigned mask) {
  const uint32_t now = ++warp.clock;
  uint32_t together[warp_size] = {};
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    const unsigned lane = __builtin_ctz(rest);
    for (unsigned other = 0; other < warp_size; other++)
      together[other] = std::max(together[other], warp.known[lane][other]);
  }
  for (unsigned rest = mask; rest; rest &= rest - 1) together[__builtin_ctz(rest)] = now;
  for (unsigned rest = mask; rest; rest &= rest - 1)
    memcpy(warp.known[__builtin_ctz(rest)], together, sizeof together);
}

// Checks what the calling lane brings against the rest of the meeting.
void check_arrival(Meeting& meeting, unsigned mask, unsigned lane, const char* operation, const char* file, int line) {
  if (!(mask >> lane & 1)) {
    emulator_stop("warp operation", format("%s: lane %u is not in its own mask 0x%08x", operation, lane, mask).c_str(),
                  file, line);
  }
  if (meeting.arrived && strcmp(meeting.operation, operation) != 0) {
    emulator_stop("warp operation", format("%s meets %s at line %d under the same mask 0x%08x", operation,
                                           meeting.operation, meeting.line, mask).c_str(), file, line);
  }
}

}  // namespace

void reset_warps() {
  for (unsigned i = 0; i < launch.warp_count; i++) {
    for (Meeting& meeting : warps[i].meetings) meeting.mask = meeting.arrived = meeting.unread = 0;
    if (!launch.checking) continue;
    warps[i].clock = 1;
    memset(warps[i].known, 0, sizeof warps[i].known);
  }
}

uint32_t warp_clock() { return current_warp().clock; }

bool happened_before(unsigned lane, uint32_t time) { return time < current_warp().known[emulator_thread->lane][lane]; }

std::string warp_deadlock(const Fiber& waiting) {
  const unsigned first = waiting.linear / warp_size * warp_size;
  const Meeting* meeting = nullptr;
  for (const Meeting& candidate : warps[waiting.linear / warp_size].meetings)
    if (candidate.arrived >> waiting.lane & 1) meeting = &candidate;
  const unsigned missing = meeting->mask & ~meeting->arrived;
  const Fiber& absent = fibers[first + __builtin_ctz(missing)];
  const std::string reason = absent.status == ThreadStatus::finished
                                 ? "has exited"
                                 : format("waits at %s in line %d", absent.operation, absent.line);
  return format("%s waits for lanes 0x%08x of its mask 0x%08x, which never come: lane %d %s", waiting.operation,
                missing, meeting->mask, __builtin_ctz(missing), reason.c_str());
}

}  // namespace emulator

extern "C" {

unsigned emulator_active_lanes() {
  using namespace emulator;
  const unsigned warp = emulator_thread->linear / warp_size;
  unsigned lanes = lanes_of_warp(warp);
  for (unsigned rest = lanes; rest; rest &= rest - 1)
    if (fibers[warp * warp_size + __builtin_ctz(rest)].status == ThreadStatus::finished) lanes &= ~(rest & -rest);
  return lanes;
}

const uint64_t* emulator_warp_exchange(
    unsigned* mask, uint64_t value, const char* operation, const char* file, int line) {
  using namespace emulator;
  Fiber& self = current_fiber();
  Warp& warp = current_warp();
  const unsigned first = self.linear - self.lane, bit = 1u << self.lane;
  *mask &= lanes_of_warp(self.linear / warp_size);
  Meeting& meeting = meeting_with(warp, *mask);
  check_arrival(meeting, *mask, self.lane, operation, file, line);
  if (!meeting.arrived) {
    meeting.operation = operation;
    meeting.file = file;
    meeting.line = line;
  }
  uint64_t* values = meeting.values[meeting.generation & 1];
  values[self.lane] = value;
  meeting.arrived |= bit;
  if (meeting.arrived != *mask) {
    self.status = ThreadStatus::at_warp_operation;
    self.operation = operation;
    self.file = file;
    self.line = line;
    yield_fiber();
    meeting.unread &= ~bit;
    return values;
  }
  meeting.arrived = 0;
  meeting.generation++;
  meeting.unread = *mask & ~bit;
  for (unsigned rest = meeting.unread; rest; rest &= rest - 1)
    fibers[first + __builtin_ctz(rest)].status = ThreadStatus::ready;
  if (launch.checking) order_lanes(warp, *mask);
  return values;
}
}
