// Values of float8_e4m3fn: a sign, 4 bits of exponent with bias 7, 3 bits of mantissa.
#pragma once

struct float8_t {
  unsigned char bits;
};

// Shifted to the place of a float's bits, every finite value is right but for the bias of the exponent, subnormal ones too.
__device__ __forceinline__ float load(const float8_t* address) {
  const unsigned bits = address->bits, magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return __int_as_float(0x7fc00000);
  return __int_as_float(static_cast<int>((bits & 0x80u) << 24 | magnitude << 20)) * 0x1p120f;
}
