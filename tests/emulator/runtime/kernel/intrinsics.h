// Device functions that plain g++ lacks. Approximate ones (__expf, rsqrtf, ...) are computed exactly here.
#pragma once

// glibc declares functions of these names itself.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __tanhf tanhf
#define __sincosf sincosf

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }  // not a number becomes 0
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
// Never fused with a neighbour: the operands pass through memory that the compiler must not look into.
static inline float __fadd_rn(float x, float y) { volatile float sum = x + y; return sum; }
static inline float __fsub_rn(float x, float y) { volatile float difference = x - y; return difference; }
static inline float __fmul_rn(float x, float y) { volatile float product = x * y; return product; }
static inline float __fdiv_rn(float x, float y) { volatile float quotient = x / y; return quotient; }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }

// ---- conversions: to integers they saturate, and not a number becomes 0 ---------------------------------------------
namespace emulator {

template <class Integer>
static inline Integer saturated(double rounded) {
  if (std::isnan(rounded)) return 0;
  constexpr Integer least = static_cast<Integer>(-1) < 0 ? static_cast<Integer>(1ull << (8 * sizeof(Integer) - 1)) : 0;
  constexpr Integer most = static_cast<Integer>(~static_cast<unsigned long long>(least));
  if (rounded <= static_cast<double>(least)) return least;
  if (rounded >= static_cast<double>(most)) return most;
  return static_cast<Integer>(rounded);
}

}  // namespace emulator

static inline int __float2int_rn(float x) { return emulator::saturated<int>(nearbyint(x)); }
static inline int __float2int_rz(float x) { return emulator::saturated<int>(trunc(x)); }
static inline int __float2int_rd(float x) { return emulator::saturated<int>(floor(x)); }
static inline int __float2int_ru(float x) { return emulator::saturated<int>(ceil(x)); }
static inline unsigned __float2uint_rn(float x) { return emulator::saturated<unsigned>(nearbyint(x)); }
static inline unsigned __float2uint_rz(float x) { return emulator::saturated<unsigned>(trunc(x)); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
static inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
static inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
static inline float __double2float_rn(double x) { return static_cast<float>(x); }

static inline int __float_as_int(float x) { return emulator::from_bits<int>(emulator::to_bits(x)); }
static inline unsigned __float_as_uint(float x) { return emulator::from_bits<unsigned>(emulator::to_bits(x)); }
static inline float __int_as_float(int x) { return emulator::from_bits<float>(emulator::to_bits(x)); }
static inline float __uint_as_float(unsigned x) { return emulator::from_bits<float>(emulator::to_bits(x)); }
static inline long long __double_as_longlong(double x) { return emulator::from_bits<long long>(emulator::to_bits(x)); }
static inline double __longlong_as_double(long long x) { return emulator::from_bits<double>(emulator::to_bits(x)); }

// ---- integers and bits ----------------------------------------------------------------------------------------------
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<int64_t>(x) * y >> 32); }
static inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
static inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int byte = 0; byte < 4; byte++)
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * byte & 7) & 0xff) << 8 * byte;
  return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

// ---- minima and maxima of mixed types, as in device code ------------------------------------------------------------
#define EMULATOR_EXTREMES(type)                                   \
  static inline type max(type x, type y) { return x < y ? y : x; } \
  static inline type min(type x, type y) { return y < x ? y : x; }
EMULATOR_EXTREMES(int)
EMULATOR_EXTREMES(unsigned)
EMULATOR_EXTREMES(long)
EMULATOR_EXTREMES(unsigned long)
EMULATOR_EXTREMES(long long)
EMULATOR_EXTREMES(unsigned long long)
static inline unsigned max(int x, unsigned y) { return max(static_cast<unsigned>(x), y); }
static inline unsigned max(unsigned x, int y) { return max(x, static_cast<unsigned>(y)); }
static inline unsigned min(int x, unsigned y) { return min(static_cast<unsigned>(x), y); }
static inline unsigned min(unsigned x, int y) { return min(x, static_cast<unsigned>(y)); }
// A number wins over not a number.
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline float min(float x, float y) { return fminf(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }
static inline double max(float x, double y) { return fmax(x, y); }
static inline double max(double x, float y) { return fmax(x, y); }
static inline double min(float x, double y) { return fmin(x, y); }
static inline double min(double x, float y) { return fmin(x, y); }

// ---- loads and stores with a cache hint -----------------------------------------------------------------------------
#define EMULATOR_LOAD(name) \
  template <class Value>    \
  static inline Value name(const Value* address) { return *address; }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldcv)
EMULATOR_LOAD(__ldlu)
#define EMULATOR_STORE(name) \
  template <class Value>     \
  static inline void name(Value* address, Value value) { *address = value; }
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stwt)
