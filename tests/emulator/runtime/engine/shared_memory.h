// Shared memory of the block that runs, and what else of the kernel's module the checks must know.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator {

constexpr size_t most_dynamic_shared_bytes = 227 << 10;  // what a block of a compute capability 9.0 device can have

// Finds the module's __shared__ variables and its segments, and puts the end of `dynamic_bytes` at a guard page.
void prepare_shared_memory(size_t dynamic_bytes);
void poison_shared_memory();  // all bits one: not a number, in every floating-point format

bool is_shared(uintptr_t address, size_t bytes);
bool is_beyond_shared(uintptr_t address);   // in the guard page, or the bytes in front of it
bool is_module_data(uintptr_t address, size_t bytes);  // constants and variables of the kernel's module or the engine
bool is_kernel_code(const void* address);
uintptr_t module_address(const void* address);  // relative to where the kernel's module was loaded
size_t dynamic_shared_bytes();

}  // namespace emulator
