#include "shared_memory.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace emulator {

namespace {

struct Range {
  uintptr_t begin, end;
  bool holds(uintptr_t address, size_t bytes) const { return address >= begin && address + bytes <= end; }
};

constexpr size_t arena_bytes = 228 << 10;
constexpr size_t dynamic_alignment = 16;

char* arena;  // dynamic shared memory; a guard page follows
Range dynamic_shared;

// A loaded module: from its first segment to its last, with what lies between.
struct LoadedModule {
  uintptr_t inside;  // an address in the module, by which it is found
  Range image;
  Range thread_storage;
};

LoadedModule kernel_module, engine_module;

int visit_module(dl_phdr_info* information, size_t, void* data) {
  LoadedModule& module = *static_cast<LoadedModule*>(data);
  Range image{UINTPTR_MAX, 0}, thread_storage{};
  for (int i = 0; i < information->dlpi_phnum; i++) {
    const auto& header = information->dlpi_phdr[i];
    if (header.p_type == PT_LOAD) {
      const uintptr_t begin = information->dlpi_addr + header.p_vaddr;
      image = {std::min(image.begin, begin), std::max(image.end, begin + header.p_memsz)};
    } else if (header.p_type == PT_TLS) {
      const auto storage = reinterpret_cast<uintptr_t>(information->dlpi_tls_data);
      thread_storage = {storage, storage + header.p_memsz};
    }
  }
  if (!image.holds(module.inside, 1)) return 0;
  module.image = image;
  module.thread_storage = thread_storage;
  return 1;
}

LoadedModule module_of(const void* inside) {
  LoadedModule module{reinterpret_cast<uintptr_t>(inside), {}, {}};
  dl_iterate_phdr(visit_module, &module);
  return module;
}

}  // namespace

void prepare_shared_memory(size_t dynamic_bytes) {
  if (!arena) {
    void* region = mmap(nullptr, arena_bytes + page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) abort();
    arena = static_cast<char*>(region);
    mprotect(arena + arena_bytes, page_bytes, PROT_NONE);
    engine_module = module_of(&arena);
  }
  const size_t padded = (dynamic_bytes + dynamic_alignment - 1) / dynamic_alignment * dynamic_alignment;
  const auto begin = reinterpret_cast<uintptr_t>(arena) + arena_bytes - padded;
  dynamic_shared = {begin, begin + dynamic_bytes};
  launch.kernel->touch_shared_storage();
  kernel_module = module_of(reinterpret_cast<const void*>(launch.kernel->call));
}

void poison_shared_memory() {
  memset(reinterpret_cast<void*>(dynamic_shared.begin), 0xff, dynamic_shared.end - dynamic_shared.begin);
  const Range& variables = kernel_module.thread_storage;
  memset(reinterpret_cast<void*>(variables.begin), 0xff, variables.end - variables.begin);
}

bool is_shared(uintptr_t address, size_t bytes) {
  return dynamic_shared.holds(address, bytes) || kernel_module.thread_storage.holds(address, bytes);
}

bool is_beyond_shared(uintptr_t address) {
  const auto begin = reinterpret_cast<uintptr_t>(arena);
  return address >= begin && address < begin + arena_bytes + page_bytes && !dynamic_shared.holds(address, 1);
}

bool is_module_data(uintptr_t address, size_t bytes) {
  return engine_module.image.holds(address, bytes) || kernel_module.image.holds(address, bytes);
}

bool is_kernel_code(const void* address) { return kernel_module.image.holds(reinterpret_cast<uintptr_t>(address), 1); }

uintptr_t module_address(const void* address) {
  return is_kernel_code(address) ? reinterpret_cast<uintptr_t>(address) - kernel_module.image.begin : 0;
}

size_t dynamic_shared_bytes() { return dynamic_shared.end - dynamic_shared.begin; }

}  // namespace emulator

extern "C" void* emulator_dynamic_shared_memory() {
  return reinterpret_cast<void*>(emulator::dynamic_shared.begin);
}
