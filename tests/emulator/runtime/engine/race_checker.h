// Which accesses of one launch no barrier, warp operation or atomicity keeps apart.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

enum class Access : uint8_t { read, write, atomic };

const char* name_of(Access access);

// Makes room for the blocks of a launch; accesses of earlier launches count no more.
void begin_race_check(size_t blocks);
void end_race_check(size_t blocks);

struct Finding {
  const char* kind = nullptr;  // null: nothing is wrong
  std::string message;
  uintptr_t other_address = 0;  // machine code of the access that this one conflicts with
};

// Remembers the access of the current thread and compares it with those before. `needs_value`: what is in shared memory
// matters, so that the block must have written it.
Finding check_access(uintptr_t address, size_t bytes, Access access, bool shared, bool needs_value, uintptr_t caller);

}  // namespace emulator
