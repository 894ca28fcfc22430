#include "reports.h"

#include <cstdarg>
#include <cstdio>
#include <deque>
#include <set>
#include <utility>

#include "shared_memory.h"
#include "state.h"

namespace emulator {

namespace {

constexpr size_t most_reports = 16;

std::deque<Report> reports;  // a deque, and one for the texts: pointers into them stay valid
std::deque<std::string> texts;
std::set<std::pair<std::string, uintptr_t>> seen;

const char* keep(std::string text) {
  texts.push_back(std::move(text));
  return texts.back().c_str();
}

void add(const char* kind, const std::string& message, const char* file, int line, uintptr_t address, uintptr_t other) {
  if (reports.size() >= most_reports) return;
  Report added{keep(kind), keep(message), file ? keep(file) : nullptr, line, address, other, launch.running, {}, {}};
  if (launch.running) {
    const uint3 block = emulator_block_index, thread = emulator_thread->index;
    added.block[0] = block.x, added.block[1] = block.y, added.block[2] = block.z;
    added.thread[0] = thread.x, added.thread[1] = thread.y, added.thread[2] = thread.z;
  }
  reports.push_back(added);
}

}  // namespace

std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

std::string thread_name(unsigned linear) {
  const uint3 index = fibers[linear].index;
  return format("(%u,%u,%u)", index.x, index.y, index.z);
}

void clear_reports() {
  reports.clear();
  texts.clear();
  seen.clear();
}

bool any_reports() { return !reports.empty(); }

void report(const char* kind, const std::string& message, const void* caller, uintptr_t other_address) {
  const uintptr_t address = module_address(caller);
  if (seen.emplace(kind, address).second) add(kind, message, nullptr, 0, address, other_address);
}

void report_stop(const char* kind, const std::string& message, const char* file, int line) {
  add(kind, message, file, line, 0, 0);
  launch.stopped = true;
}

void report_stop(const char* kind, const std::string& message, const void* caller) {
  add(kind, message, nullptr, 0, module_address(caller), 0);
  launch.stopped = true;
}

}  // namespace emulator

extern "C" {

void emulator_stop(const char* kind, const char* message, const char* file, int line) {
  emulator::report_stop(kind, message, file, line);
  emulator::abandon_fiber();
}

unsigned emulator_report_count() { return static_cast<unsigned>(emulator::reports.size()); }

const emulator::Report* emulator_report(unsigned index) { return &emulator::reports[index]; }
}
