// Writes the counts of executed lines to a file and forgets them, when it is asked to and not when the process ends.
#pragma once
#ifdef EMULATOR_COVERAGE
extern "C" {
void __gcov_dump();
void __gcov_reset();

__attribute__((visibility("default"))) void emulator_write_coverage() {
  __gcov_dump();
  __gcov_reset();
}

void __wrap___gcov_exit() {}  // the linker puts this in the place of __gcov_exit
}
#endif
