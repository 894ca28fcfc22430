// What went wrong in a launch, as plain data for the Python side.
#pragma once
#include <cstdint>
#include <string>

#include "../interface.h"

namespace emulator {

struct Report {
  const char* kind;
  const char* message;
  const char* file;        // null if only `address` is known
  int line;
  uintptr_t address;       // of the machine code, relative to the kernel's module; 0 if unknown
  uintptr_t other_address; // of the other access of a race; 0 if there is none
  bool has_thread;
  unsigned block[3];
  unsigned thread[3];
};

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string thread_name(unsigned linear);  // (x,y,z), by its position in the block

void clear_reports();
bool any_reports();

// Reports on the current thread (unless the launch is over), at a place in machine code or in the source.
void report(const char* kind, const std::string& message, const void* caller, uintptr_t other_address = 0);
void report_stop(const char* kind, const std::string& message, const char* file, int line);
void report_stop(const char* kind, const std::string& message, const void* caller);

}  // namespace emulator
