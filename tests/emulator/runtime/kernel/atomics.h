// Atomic operations. Everything runs on one OS thread, so that a plain read and write is atomic; the checks are told.
#pragma once

#define EMULATOR_ATOMIC(name, uses_old_value, expression)                                        \
  template <class Value, class Operand>                                                          \
  EMULATOR_UNCHECKED Value name(Value* address, Operand operand) {                               \
    emulator_atomic_access(address, sizeof(Value), uses_old_value, __builtin_return_address(0)); \
    const Value value = static_cast<Value>(operand);                                             \
    const Value old = *address;                                                                  \
    *address = static_cast<Value>(expression);                                                   \
    return old;                                                                                  \
  }
EMULATOR_ATOMIC(atomicAdd, true, old + value)
EMULATOR_ATOMIC(atomicSub, true, old - value)
EMULATOR_ATOMIC(atomicMax, true, old > value ? old : value)
EMULATOR_ATOMIC(atomicMin, true, old < value ? old : value)
EMULATOR_ATOMIC(atomicExch, false, value)
EMULATOR_ATOMIC(atomicAnd, true, old& value)
EMULATOR_ATOMIC(atomicOr, true, old | value)
EMULATOR_ATOMIC(atomicXor, true, old ^ value)
EMULATOR_ATOMIC(atomicInc, true, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, true, old == 0 || old > value ? value : old - 1)

template <class Value, class Compared, class Operand>
EMULATOR_UNCHECKED Value atomicCAS(Value* address, Compared compared, Operand operand) {
  emulator_atomic_access(address, sizeof(Value), true, __builtin_return_address(0));
  const Value old = *address;
  if (old == static_cast<Value>(compared)) *address = static_cast<Value>(operand);
  return old;
}
