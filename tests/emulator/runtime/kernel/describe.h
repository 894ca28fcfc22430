// Kernel registry: what the launcher must know of a kernel, derived from its C++ type.
#pragma once
#include <cxxabi.h>

#include <type_traits>
#include <typeinfo>
#include <utility>

namespace emulator {

// Exists to make the module's thread-local storage, hence its __shared__ variables, exist.
static __thread char shared_storage_anchor;
static void* touch_shared_storage() { return &shared_storage_anchor; }

template <class Type>
constexpr char code_of() {
  using Plain = std::remove_cv_t<Type>;
  if (std::is_void_v<Plain>) return 'v';
  if (std::is_pointer_v<Plain>) return 'p';
  if (std::is_same_v<Plain, bool>) return 'b';
  if (std::is_floating_point_v<Plain>) return 'f';
  if (std::is_integral_v<Plain>) return std::is_signed_v<Plain> ? 'i' : 'u';
  if (std::is_same_v<Plain, __half>) return 'h';
  if (std::is_same_v<Plain, __nv_bfloat16>) return 'n';
  return 's';
}

template <class Type>
constexpr unsigned size_of() {
  if constexpr (std::is_void_v<Type>) return 0;
  else return sizeof(Type);
}

template <class Type>
static const char* name_of() {
  static const char* name = abi::__cxa_demangle(typeid(Type).name(), nullptr, nullptr, nullptr);  // for good
  return name;
}

template <class Type>
static Parameter parameter_of() {
  static_assert(!std::is_reference_v<Type>, "a kernel takes no references");
  using Pointee = std::remove_pointer_t<Type>;
  return {code_of<Type>(), code_of<Pointee>(), std::is_const_v<Pointee>, size_of<Type>(), size_of<Pointee>(),
          name_of<Type>()};
}

template <auto kernel>
struct Described;

template <class... Types, void (*kernel)(Types...)>
struct Described<kernel> {
  template <size_t... positions>
  EMULATOR_UNCHECKED static void call_with(void** arguments, std::index_sequence<positions...>) {
    kernel(*static_cast<Types*>(arguments[positions])...);
  }
  static void call(void** arguments) { call_with(arguments, std::index_sequence_for<Types...>()); }

  static KernelDescription description(const char* name, unsigned maximum_threads) {
    static const Parameter parameters[] = {parameter_of<Types>()..., Parameter{}};
    return {name, &call, &touch_shared_storage, parameters, sizeof...(Types), maximum_threads};
  }
};

}  // namespace emulator
