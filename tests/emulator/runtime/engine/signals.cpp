// Hardware faults and endless loops of a kernel become reports: a signal handler leaves the kernel by a long jump.
#include <csetjmp>
#include <csignal>
#include <ctime>
#include <unistd.h>

#include <ucontext.h>

#include "device_memory.h"
#include "reports.h"
#include "shared_memory.h"
#include "state.h"

namespace emulator {

namespace {

constexpr int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr size_t handler_stack_bytes = 64 << 10;

sigjmp_buf leave_kernel;
double time_limit;
char handler_stack[handler_stack_bytes];

const void* interrupted_at(void* context) {
  return reinterpret_cast<const void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
}

// Reports hold return addresses, which lie behind the instruction; here the instruction itself is known.
const void* as_return_address(const void* instruction) { return static_cast<const char*>(instruction) + 1; }

void report_fault(uintptr_t address, const void* instruction) {
  const auto stack = reinterpret_cast<uintptr_t>(current_fiber().stack);
  if (address >= stack - page_bytes && address < stack) {
    report_stop("stack overflow", format("the thread uses more than %zu bytes of stack", stack_bytes), instruction);
    return;
  }
  const Wrong wrong = explain_address(address);
  report_stop(wrong.kind, "access to " + wrong.where, instruction);
}

void on_fault(int signal, siginfo_t* information, void* context) {
  if (!launch.running) {  // not the kernel's doing: let the instruction fail again, as it would have without us
    ::signal(signal, SIG_DFL);
    return;
  }
  const void* instruction = as_return_address(interrupted_at(context));
  if (signal == SIGFPE) {
    report_stop("division by zero", "integer division by zero", instruction);
  } else if (signal == SIGILL) {  // a compiler's trap, or an instruction that this processor does not have
    report_stop("illegal instruction", "the processor refuses the instruction", instruction);
  } else if (information->si_code == SI_KERNEL) {  // the processor gives no address: a 16-byte access needs alignment
    report_stop("misaligned", "access that needs a 16-byte alignment", instruction);
  } else {
    report_fault(reinterpret_cast<uintptr_t>(information->si_addr), instruction);
  }
  siglongjmp(leave_kernel, 1);
}

void on_timer(int, siginfo_t*, void* context) {
  // Left only from the kernel's own code: the engine's data must stay whole. The timer comes again.
  if (!launch.running || !is_kernel_code(interrupted_at(context))) return;
  const void* instruction = as_return_address(interrupted_at(context));
  report_stop("time limit", format("still running after %g seconds", time_limit), instruction);
  siglongjmp(leave_kernel, 1);
}

class SignalHandlers {
 public:
  explicit SignalHandlers(double seconds) {
    stack_t stack{handler_stack, 0, handler_stack_bytes};
    sigaltstack(&stack, &old_stack_);
    for (size_t i = 0; i < std::size(fault_signals); i++) install(fault_signals[i], on_fault, &old_faults_[i]);
    install(SIGRTMIN, on_timer, &old_timer_action_);
    time_limit = seconds;
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGRTMIN;
    event._sigev_un._tid = gettid();
    timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_);
    const auto whole = static_cast<time_t>(seconds);
    const auto rest = static_cast<long>((seconds - static_cast<double>(whole)) * 1e9);
    const itimerspec times{{0, 5'000'000}, {whole, rest}};
    timer_settime(timer_, 0, &times, nullptr);
  }
  ~SignalHandlers() {
    timer_delete(timer_);
    sigaction(SIGRTMIN, &old_timer_action_, nullptr);
    for (size_t i = 0; i < std::size(fault_signals); i++) sigaction(fault_signals[i], &old_faults_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }
  SignalHandlers(const SignalHandlers&) = delete;
  SignalHandlers& operator=(const SignalHandlers&) = delete;

 private:
  static void install(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction* old) {
    struct sigaction action{};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(signal, &action, old);
  }

  stack_t old_stack_{};
  struct sigaction old_faults_[std::size(fault_signals)]{};
  struct sigaction old_timer_action_{};
  timer_t timer_{};
};

}  // namespace

void run_guarded(double time_limit_seconds) {
  const SignalHandlers handlers(time_limit_seconds);
  if (sigsetjmp(leave_kernel, 1) == 0) {
    launch.running = true;
    run_blocks();
  }
  launch.running = false;
}

}  // namespace emulator
