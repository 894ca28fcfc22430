// Warp collectives. Each lane brings up to 8 bytes to an exchange and computes its own result from what all brought.
#pragma once

namespace emulator {

template <class Value>
static inline uint64_t to_bits(Value value) {
  static_assert(sizeof(Value) <= sizeof(uint64_t), "a warp exchanges values of at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class Value>
static inline Value from_bits(uint64_t bits) {
  Value value;
  memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

// `source_of(lane, first, last)` gives the lane to read in a segment of `width` lanes, or -1 for the lane's own value.
template <class Value, class SourceOf>
static inline Value shuffle(
    unsigned mask, Value value, int width, const char* operation, const char* file, int line, SourceOf source_of) {
  const int lane = static_cast<int>(emulator_thread->lane);
  const uint64_t* values = emulator_warp_exchange(&mask, to_bits(value), operation, file, line);
  EMULATOR_COMPILER_FENCE();
  const int source = source_of(lane, lane & ~(width - 1), lane | (width - 1));
  if (source < 0 || source == lane) return value;
  if (!(mask >> source & 1)) {
    char message[96];
    snprintf(message, sizeof message, "%s reads lane %d, which is not in the mask", operation, source);
    emulator_stop("warp operation", message, file, line);
  }
  return from_bits<Value>(values[source]);
}

template <class Value, class Combine>
static inline Value reduce(
    unsigned mask, Value value, const char* operation, const char* file, int line, Combine combine) {
  const uint64_t* values = emulator_warp_exchange(&mask, to_bits(value), operation, file, line);
  EMULATOR_COMPILER_FENCE();
  Value result = from_bits<Value>(values[__builtin_ctz(mask)]);
  for (unsigned rest = mask & (mask - 1); rest; rest &= rest - 1)
    result = combine(result, from_bits<Value>(values[__builtin_ctz(rest)]));
  return result;
}

}  // namespace emulator

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_SITE) {
  EMULATOR_COMPILER_FENCE();
  emulator_warp_exchange(&mask, 0, "__syncwarp", file, line);
  EMULATOR_COMPILER_FENCE();
}

// The lanes that have not exited: those that others have run ahead of, too.
static inline unsigned __activemask() { return emulator_active_lanes(); }

template <class Value>
static inline Value __shfl_sync(unsigned mask, Value value, int source, int width = 32, EMULATOR_SITE) {
  return emulator::shuffle(mask, value, width, "__shfl_sync", file, line,
                           [=](int, int first, int) { return first + (source & (width - 1)); });
}

template <class Value>
static inline Value __shfl_xor_sync(unsigned mask, Value value, int bits, int width = 32, EMULATOR_SITE) {
  return emulator::shuffle(mask, value, width, "__shfl_xor_sync", file, line,
                           [=](int lane, int, int last) { return (lane ^ bits) <= last ? lane ^ bits : -1; });
}

template <class Value>
static inline Value __shfl_down_sync(unsigned mask, Value value, unsigned delta, int width = 32, EMULATOR_SITE) {
  return emulator::shuffle(mask, value, width, "__shfl_down_sync", file, line, [=](int lane, int, int last) {
    return lane + static_cast<int>(delta) <= last ? lane + static_cast<int>(delta) : -1;
  });
}

template <class Value>
static inline Value __shfl_up_sync(unsigned mask, Value value, unsigned delta, int width = 32, EMULATOR_SITE) {
  return emulator::shuffle(mask, value, width, "__shfl_up_sync", file, line, [=](int lane, int first, int) {
    return lane - static_cast<int>(delta) >= first ? lane - static_cast<int>(delta) : -1;
  });
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  const unsigned mine = predicate ? 1u << emulator_thread->lane : 0u;
  return emulator::reduce(mask, mine, "__ballot_sync", file, line, [](unsigned a, unsigned b) { return a | b; });
}

static inline int __any_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return emulator::reduce(mask, predicate != 0, "__any_sync", file, line, [](bool a, bool b) { return a || b; });
}

static inline int __all_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return emulator::reduce(mask, predicate != 0, "__all_sync", file, line, [](bool a, bool b) { return a && b; });
}

#define EMULATOR_WARP_REDUCTION(name, type, expression)                                            \
  static inline type name(unsigned mask, type value, EMULATOR_SITE) {                              \
    return emulator::reduce(mask, value, #name, file, line, [](type a, type b) -> type { return expression; }); \
  }
EMULATOR_WARP_REDUCTION(__reduce_add_sync, unsigned, a + b)
EMULATOR_WARP_REDUCTION(__reduce_add_sync, int, a + b)
EMULATOR_WARP_REDUCTION(__reduce_max_sync, unsigned, a > b ? a : b)
EMULATOR_WARP_REDUCTION(__reduce_max_sync, int, a > b ? a : b)
EMULATOR_WARP_REDUCTION(__reduce_min_sync, unsigned, a < b ? a : b)
EMULATOR_WARP_REDUCTION(__reduce_min_sync, int, a < b ? a : b)
EMULATOR_WARP_REDUCTION(__reduce_and_sync, unsigned, a & b)
EMULATOR_WARP_REDUCTION(__reduce_or_sync, unsigned, a | b)
EMULATOR_WARP_REDUCTION(__reduce_xor_sync, unsigned, a ^ b)
