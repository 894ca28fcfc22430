// One fiber per CUDA thread. A switch saves what the x86-64 calling convention keeps across a call: six registers and
// the stack pointer.
#include <sys/mman.h>

#include <cstdlib>

#include "reports.h"
#include "state.h"

extern "C" void emulator_switch_stack(void** save, void* restore);
asm(R"(
.text
.globl emulator_switch_stack
.type emulator_switch_stack, @function
emulator_switch_stack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size emulator_switch_stack, . - emulator_switch_stack
)");

extern "C" {
emulator::ThreadState* emulator_thread;
uint3 emulator_block_index;
dim3 emulator_block_dimensions, emulator_grid_dimensions;
}

namespace emulator {

Fiber fibers[maximum_threads];

namespace {

constexpr int saved_registers = 6;
void* scheduler_stack_pointer;
unsigned prepared;

void run_kernel() {
  launch.kernel->call(launch.arguments);
  current_fiber().status = ThreadStatus::finished;
  yield_fiber();
  abort();  // a finished fiber is never resumed
}

}  // namespace

void prepare_fibers(unsigned count) {
  for (; prepared < count; prepared++) {
    void* region = mmap(nullptr, page_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) abort();
    mprotect(region, page_bytes, PROT_NONE);
    fibers[prepared].stack = static_cast<char*>(region) + page_bytes;
  }
}

void start_fiber(Fiber& fiber) {
  void** top = reinterpret_cast<void**>(fiber.stack + stack_bytes) - 2;  // aligned at the entry as after a call
  *top = reinterpret_cast<void*>(&run_kernel);
  fiber.stack_pointer = top - saved_registers;
  fiber.status = ThreadStatus::ready;
}

void resume_fiber(Fiber& fiber) {
  emulator_thread = &fiber;
  emulator_switch_stack(&scheduler_stack_pointer, fiber.stack_pointer);
}

void yield_fiber() { emulator_switch_stack(&current_fiber().stack_pointer, scheduler_stack_pointer); }

void abandon_fiber() {
  current_fiber().status = ThreadStatus::finished;
  yield_fiber();
  abort();
}

}  // namespace emulator
