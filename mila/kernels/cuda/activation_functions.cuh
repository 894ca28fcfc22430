// Activation functions and their derivatives.
//
// All are stable: an exponential overflows only where its reciprocal is then the zero that it should be, and products
// are ordered so that a factor of zero comes before one that is huge. NaN stays: bounds are comparisons, since fminf
// and fmaxf drop it.
#pragma once

// F(x) of a distribution symmetric about zero from `lower` = F(-|x|).
__device__ __forceinline__ float reflected(float lower, float x) { return x > 0.0f ? 1.0f - lower : lower; }

// 1 / (1 + exp(-x)), as exact in its lower tail as anywhere.
__device__ __forceinline__ float logistic(float x) {
  const float small = expf(-fabsf(x));
  return reflected(small / (1.0f + small), x);
}

// value(x) = f(x); both(x, slope) also writes slope = f'(x).
struct None {
  __device__ float value(float x) const { return x; }
  __device__ float both(float x, float& slope) const {
    slope = 1.0f;
    return x;
  }
};

// The derivative is 0 at zero, and not 0 for NaN, which must not vanish on the way back.
struct Relu {
  __device__ float value(float x) const { return x <= 0.0f ? 0.0f : x; }
  __device__ float both(float x, float& slope) const {
    slope = x <= 0.0f ? 0.0f : 1.0f;
    return value(x);
  }
};

struct LeakyRelu {
  float lower_slope;
  __device__ float value(float x) const { return x > 0.0f ? x : lower_slope * x; }
  __device__ float both(float x, float& slope) const {
    slope = x > 0.0f ? 1.0f : lower_slope;
    return value(x);
  }
};

struct Tanh {
  __device__ float value(float x) const { return tanhf(x); }
  __device__ float both(float x, float& slope) const {
    const float y = tanhf(x);
    slope = 1.0f - y * y;
    return y;
  }
};

struct Sigmoid {
  __device__ float value(float x) const { return logistic(x); }
  __device__ float both(float x, float& slope) const {
    const float y = logistic(x);
    slope = (1.0f - y) * y;
    return y;
  }
};

// x s with s = sigmoid(factor x); the derivative is s + factor y (1 - s). SiLU has the factor 1, quick GELU 1.702
// (Hendrycks & Gimpel 2016, section 2).
struct SigmoidGate {
  float factor;
  __device__ float value(float x) const { return x / (1.0f + expf(-factor * x)); }
  __device__ float both(float x, float& slope) const {
    const float s = logistic(factor * x), y = s * x;
    slope = s + (1.0f - s) * factor * y;
    return y;
  }
};

// x Phi(x) with the normal distribution function Phi; the derivative is Phi(x) + x phi(x) with its density.
//
// Phi(-z) = exp(-z² / 2) G(z) / (K + z) for z = |x|, with G the polynomial in t = (K - z) / (K + z) that the CPU's
// kernels use in float32 (the form of Shepherd & Laframboise 1981, "Chebyshev approximation of (1 + 2x) exp(x²)
// erfc(x)").
struct Gelu {
  static __device__ float cumulative(float x, float& exponential) {
    constexpr float K = 4.0f;
    const float z = fminf(fabsf(x), 40.0f);  // where the exponential is zero; NaN returns with the factor x
    const float reciprocal = 1.0f / (K + z), t = fmaf(2.0f * K, reciprocal, -1.0f);
    float g = -1.6733153708768409e-06f;
    g = fmaf(g, t, 0.00015712155479473728f);
    g = fmaf(g, t, 0.0001335102422702405f);
    g = fmaf(g, t, -0.0015633370838803145f);
    g = fmaf(g, t, -0.0034798308762466882f);
    g = fmaf(g, t, 0.007511891967866995f);
    g = fmaf(g, t, 0.060396604828050586f);
    g = fmaf(g, t, 0.18652680596407173f);
    g = fmaf(g, t, 0.38713739914843553f);
    g = fmaf(g, t, 0.6078963965890951f);
    g = fmaf(g, t, 0.7552851304157515f);
    // The rounding error of z², which the exponential would magnify, comes back as a factor.
    const float square = z * z, error = fmaf(z, z, -square);
    exponential = expf(-0.5f * square) * fmaf(-0.5f, error, 1.0f);
    return reflected(exponential * g * reciprocal, x);
  }
  __device__ float value(float x) const {
    float exponential;
    return cumulative(x, exponential) * x;
  }
  __device__ float both(float x, float& slope) const {
    constexpr float DENSITY_AT_ZERO = 0.3989422804014327f;  // 1 / sqrt(2 pi)
    float exponential;
    const float phi = cumulative(x, exponential);
    slope = phi + exponential * DENSITY_AT_ZERO * x;
    return phi * x;
  }
};

// GELU by tanh (Hendrycks & Gimpel 2016): x s with s = (1 + tanh(u)) / 2 = sigmoid(2 u), u = x (A + B x²). The
// derivative is s + 2 x s (1 - s) (A + 3 B x²).
struct GeluTanh {
  static constexpr float A = 0.7978845608028654f;  // sqrt(2 / pi)
  static constexpr float B = 0.044715f * A;
  // Beyond 20 s is 0 or 1, no matter how large the x that it is multiplied with, so that x may be bounded before it is
  // squared.
  static __device__ float bounded(float x) { return x < -20.0f ? -20.0f : (x > 20.0f ? 20.0f : x); }
  static __device__ float gate(float x) { return logistic(2.0f * x * fmaf(B * x, x, A)); }
  __device__ float value(float x) const { return gate(bounded(x)) * x; }
  __device__ float both(float x, float& slope) const {
    const float c = bounded(x), s = gate(c);
    slope = fmaf(2.0f * c * fmaf(3.0f * B * c, c, A) * s, 1.0f - s, s);
    return s * x;
  }
};

// x tanh(softplus(x)) (Misra 2019). With exp(x) = p / q and p, q at most one the tanh is N / D, N = p (p + 2 q), D = N
// + 2 q²; the derivative is N / D + 4 x p q² (p + q) / D².
struct Mish {
  __device__ float value(float x) const {
    float slope;
    return both(x, slope);
  }
  __device__ float both(float x, float& slope) const {
    const float p = x < 0.0f ? expf(x) : 1.0f, q = x > 0.0f ? expf(-x) : 1.0f;
    const float numerator = p * (p + 2.0f * q), denominator = numerator + 2.0f * q * q;
    const float ratio = numerator / denominator;
    slope = ratio + 4.0f * (p + q) * p * (q * q) / denominator / denominator * x;
    return ratio * x;
  }
};

// x where it is positive, else alpha (exp(x) - 1) (Clevert, Unterthiner & Hochreiter 2016); the derivative at zero is
// alpha.
struct Elu {
  float alpha;
  __device__ float value(float x) const { return x > 0.0f ? x : alpha * expm1f(x); }
  __device__ float both(float x, float& slope) const {
    slope = x > 0.0f ? 1.0f : alpha * expf(x);
    return value(x);
  }
};

// x g with g = clamp(x + 3, 0, 6) / 6 (Howard et al. 2019); the derivative is g + x / 6 where |x| < 3, else g.
struct HardSwish {
  static __device__ float gate(float x) {
    const float raised = x + 3.0f;
    return (raised < 0.0f ? 0.0f : (raised > 6.0f ? 6.0f : raised)) / 6.0f;
  }
  __device__ float value(float x) const { return gate(x) * x; }
  __device__ float both(float x, float& slope) const {
    const float g = gate(x);
    slope = fabsf(x) < 3.0f ? g + x / 6.0f : g;
    return g * x;
  }
};

// log(1 + exp(beta x)) / beta (Dugas et al. 2001), or x where beta x is above the threshold; the derivative is
// sigmoid(beta x) or 1.
struct Softplus {
  float beta, threshold;
  __device__ float value(float x) const {
    const float scaled = beta * x;
    return scaled > threshold ? x : (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(scaled))) / beta;
  }
  __device__ float both(float x, float& slope) const {
    const float scaled = beta * x;
    slope = scaled > threshold ? 1.0f : logistic(scaled);
    return value(x);
  }
};

// The order of _KINDS in activations.py.
enum Kind { NONE, RELU, GELU, GELU_TANH, QUICK_GELU, SILU, TANH, SIGMOID, LEAKY_RELU, MISH, ELU, HARDSWISH, SOFTPLUS };

// body(function) for the function of that kind. The choice is the same in every thread, so it is made inside of loops: a
// loop for each function takes twice as long to compile. `options`: of LEAKY_RELU its slope, of ELU alpha, of SOFTPLUS
// beta and the threshold.
template <typename Body>
__device__ __forceinline__ void with_function(int kind, float option, float second_option, Body body) {
  switch (kind) {
    case NONE: return body(None());
    case RELU: return body(Relu());
    case GELU: return body(Gelu());
    case GELU_TANH: return body(GeluTanh());
    case QUICK_GELU: return body(SigmoidGate{1.702f});
    case SILU: return body(SigmoidGate{1.0f});
    case TANH: return body(Tanh());
    case SIGMOID: return body(Sigmoid());
    case LEAKY_RELU: return body(LeakyRelu{option});
    case MISH: return body(Mish());
    case ELU: return body(Elu{option});
    case HARDSWISH: return body(HardSwish());
    case SOFTPLUS: return body(Softplus{option, second_option});
  }
}
