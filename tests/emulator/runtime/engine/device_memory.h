// Device allocations, each in a mapping of its own that ends at a guard page.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

bool is_allocated(uintptr_t address, size_t bytes);  // wholly inside one live allocation

// Why an access to an address that is_allocated denies is wrong.
struct Wrong {
  const char* kind;
  std::string where;
};
Wrong explain_address(uintptr_t address);

// Reports every allocation whose surroundings were written to, and restores them.
void check_surroundings();

}  // namespace emulator
