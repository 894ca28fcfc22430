// Layout of an allocation's mapping: guard page, surroundings, data, surroundings (less than the alignment), guard page
// again. The surroundings are filled with a pattern and compared after each launch. A freed allocation stays mapped without
// access for a while, so that its use faults.
#include "device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

#include "reports.h"
#include "shared_memory.h"
#include "state.h"

namespace emulator {

namespace {

constexpr unsigned char surroundings_pattern = 0xcb;
constexpr size_t most_freed = 4096;  // mappings kept after they were freed

struct Allocation {
  uintptr_t data;
  size_t bytes;
  char* mapping;
  size_t mapping_bytes;

  unsigned char* front() const { return reinterpret_cast<unsigned char*>(mapping) + page_bytes; }
  unsigned char* begin() const { return reinterpret_cast<unsigned char*>(data); }
  unsigned char* end() const { return begin() + bytes; }
  unsigned char* back() const { return reinterpret_cast<unsigned char*>(mapping) + mapping_bytes - page_bytes; }
};

std::map<uintptr_t, Allocation> allocations;  // by data
std::deque<Allocation> freed;                 // oldest first
const Allocation* latest;                     // where the last access was found

const Allocation* before_or_at(uintptr_t address) {
  auto next = allocations.upper_bound(address);
  return next == allocations.begin() ? nullptr : &std::prev(next)->second;
}

bool in_mapping(const Allocation& allocation, uintptr_t address) {
  const auto begin = reinterpret_cast<uintptr_t>(allocation.mapping);
  return address >= begin && address < begin + allocation.mapping_bytes;
}

// The first byte that does not hold the pattern, or `end`.
const unsigned char* first_change(const unsigned char* begin, const unsigned char* end) {
  return std::find_if(begin, end, [](unsigned char byte) { return byte != surroundings_pattern; });
}

std::string distance(const Allocation& allocation, uintptr_t address) {
  const bool after = address >= allocation.data;
  const size_t bytes = after ? address - allocation.data - allocation.bytes : allocation.data - address;
  return format("%zu bytes %s an allocation of %zu bytes", bytes, after ? "past the end of" : "before the start of",
                allocation.bytes);
}

void check_and_restore(const Allocation& allocation, unsigned char* begin, const unsigned char* end) {
  const unsigned char* changed = first_change(begin, end);
  if (changed == end) return;
  const std::string where = distance(allocation, reinterpret_cast<uintptr_t>(changed));
  report_stop("out of bounds", "the kernel overwrote what lies " + where, nullptr, 0);
  memset(begin, surroundings_pattern, static_cast<size_t>(end - begin));
}

}  // namespace

bool is_allocated(uintptr_t address, size_t bytes) {
  const auto holds = [&](const Allocation* allocation) {
    return allocation && address >= allocation->data && address + bytes <= allocation->data + allocation->bytes;
  };
  if (holds(latest)) return true;
  const Allocation* candidate = before_or_at(address);
  if (!holds(candidate)) return false;
  latest = candidate;
  return true;
}

Wrong explain_address(uintptr_t address) {
  if (address < page_bytes) return {"out of bounds", "a null pointer"};
  if (is_beyond_shared(address)) {
    return {"out of bounds", format("memory outside the %zu bytes of dynamic shared memory", dynamic_shared_bytes())};
  }
  for (auto allocation = freed.rbegin(); allocation != freed.rend(); ++allocation)
    if (in_mapping(*allocation, address)) {
      return {"use after free", format("byte %td of a freed allocation of %zu bytes",
                                       static_cast<ptrdiff_t>(address - allocation->data), allocation->bytes)};
    }
  for (const auto& [data, allocation] : allocations)
    if (in_mapping(allocation, address)) return {"out of bounds", distance(allocation, address)};
  return {"out of bounds", format("%p, which is no memory of the device", reinterpret_cast<void*>(address))};
}

void check_surroundings() {
  for (const auto& [data, allocation] : allocations) {
    check_and_restore(allocation, allocation.front(), allocation.begin());
    check_and_restore(allocation, allocation.end(), allocation.back());
  }
}

}  // namespace emulator

extern "C" {

// Memory filled with all bits one (not a number), or 0 if there is none. `alignment` is a power of two up to a page.
uintptr_t emulator_allocate(size_t bytes, size_t alignment) {
  using namespace emulator;
  const size_t padded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  const size_t pages = (padded + page_bytes - 1) / page_bytes * page_bytes;
  const size_t mapping_bytes = pages + 2 * page_bytes;
  void* region = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) return 0;
  char* mapping = static_cast<char*>(region);
  mprotect(mapping, page_bytes, PROT_NONE);
  mprotect(mapping + page_bytes + pages, page_bytes, PROT_NONE);
  const uintptr_t data = reinterpret_cast<uintptr_t>(mapping) + page_bytes + pages - padded;
  const Allocation allocation{data, bytes, mapping, mapping_bytes};
  memset(allocation.front(), surroundings_pattern, pages);
  memset(allocation.begin(), 0xff, bytes);
  allocations[data] = allocation;
  return data;
}

// Whether `data` was a live allocation.
bool emulator_free(uintptr_t data) {
  using namespace emulator;
  const auto found = allocations.find(data);
  if (found == allocations.end()) return false;
  const Allocation allocation = found->second;
  mprotect(allocation.mapping, allocation.mapping_bytes, PROT_NONE);
  madvise(allocation.mapping, allocation.mapping_bytes, MADV_DONTNEED);
  allocations.erase(found);
  latest = nullptr;
  freed.push_back(allocation);
  if (freed.size() > most_freed) {
    munmap(freed.front().mapping, freed.front().mapping_bytes);
    freed.pop_front();
  }
  return true;
}
}
