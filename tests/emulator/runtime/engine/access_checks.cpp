// Where the instrumentation of -fsanitize=thread,alignment,bounds ends: our own functions instead of the sanitizers'
// libraries. Everything a kernel reads or writes comes through here before it happens.
#include <cstring>

#include "device_memory.h"
#include "race_checker.h"
#include "reports.h"
#include "shared_memory.h"
#include "state.h"

namespace emulator {

namespace {

bool on_own_stack(uintptr_t address) {
  const auto stack = reinterpret_cast<uintptr_t>(current_fiber().stack);
  return address >= stack && address < stack + stack_bytes;
}

bool is_power_of_two(size_t number) { return (number & (number - 1)) == 0; }

void check(uintptr_t address, size_t bytes, Access access, bool must_be_aligned, bool needs_value, const void* caller) {
  if (!launch.checking || !launch.running || bytes == 0) return;
  if (on_own_stack(address) || is_module_data(address, bytes)) return;
  const bool shared = is_shared(address, bytes);
  if (!shared && !is_allocated(address, bytes)) {
    // The first byte may be in bounds: a wide access then crosses the end.
    const bool first_in_bounds = is_allocated(address, 1);
    const Wrong wrong = explain_address(first_in_bounds ? address + bytes - 1 : address);
    report_stop(wrong.kind, format("%s of %zu bytes at ", name_of(access), bytes) + wrong.where, caller);
    abandon_fiber();  // before it happens
  }
  if (must_be_aligned && is_power_of_two(bytes) && address % bytes != 0) {
    report("misaligned", format("%s of %zu bytes at an address that is a multiple of %zu only", name_of(access), bytes,
                                static_cast<size_t>(address & -address)), caller);
    return;
  }
  const Finding finding = check_access(address, bytes, access, shared, needs_value, module_address(caller));
  if (finding.kind) {
    const std::string memory = shared ? " in shared memory" : " in global memory";
    report(finding.kind, finding.message + memory, caller, finding.other_address);
  }
}

struct SourceLocation {  // as the compiler emits it for its undefined-behaviour checks
  const char* file;
  uint32_t line, column;
};

void report_undefined(const char* kind, const char* message, const SourceLocation& location, const void* caller) {
  if (launch.checking && launch.running) report(kind, format("%s (column %u)", message, location.column), caller);
}

}  // namespace

}  // namespace emulator

#define CALLER __builtin_return_address(0)
#define CHECK(access, address, bytes, must_be_aligned) \
  emulator::check(reinterpret_cast<uintptr_t>(address), bytes, emulator::Access::access, must_be_aligned, \
                  emulator::Access::access == emulator::Access::read, CALLER)
#define HOOKS(bytes)                                                                      \
  void __tsan_read##bytes(void* address) { CHECK(read, address, bytes, true); }            \
  void __tsan_write##bytes(void* address) { CHECK(write, address, bytes, true); }          \
  void __tsan_unaligned_read##bytes(void* address) { CHECK(read, address, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* address) { CHECK(write, address, bytes, false); }

extern "C" {

void emulator_atomic_access(const void* address, unsigned size, bool uses_old_value, const void* caller) {
  emulator::check(reinterpret_cast<uintptr_t>(address), size, emulator::Access::atomic, true, uses_old_value, caller);
}

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* address, size_t bytes) { CHECK(read, address, bytes, false); }
void __tsan_write_range(void* address, size_t bytes) { CHECK(write, address, bytes, false); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void __ubsan_handle_type_mismatch_v1(emulator::SourceLocation* location, uintptr_t address) {
  // Null pointers are left to the access itself.
  if (address) emulator::report_undefined("misaligned", "pointer not aligned for its type", *location, CALLER);
}

void __ubsan_handle_out_of_bounds(emulator::SourceLocation* location, uintptr_t) {
  emulator::report_undefined("out of bounds", "index outside the array", *location, CALLER);
}
}
