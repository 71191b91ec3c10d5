// functions: what the vocoder's layers compute of single numbers.
//
// In:    vectors
// Out:   vectors
// Owns:  nothing
// Never: memory
#pragma once

#include "simd.h"

namespace {

// 0.5 x (1 + erf(x / sqrt 2)) to 2e-7 x: erfc by Abramowitz and Stegun 7.1.26.
inline Floats gelu(const Floats& x) {
    const Floats size = absolute(x), z = size * all(0.707106781f), one = all(1.0f);
    const Floats t = one / fma(all(0.3275911f), z, one);
    Floats y = all(1.061405429f);
    for (const float a : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) y = fma(y, t, all(a));
    const Floats erfc = y * t * exponential(fnma(z, z, zeros()));
    return max(zeros(), x) - size * all(0.5f) * erfc;
}

// sin(x) and cos(x): x = n pi / 2 + r in three parts of pi / 2, then their series (coefficients of Cephes' sinf and cosf).
inline void sine_cosine(const Floats& x, Floats& sine, Floats& cosine) {
    const Floats n = nearest(x * all(0.636619772f));
    Floats r = fnma(n, all(1.57079637e+0f), x);
    r = fnma(n, all(-4.37113883e-8f), r);
    r = fnma(n, all(-1.71512451e-15f), r);
    const Floats square = r * r;
    Floats s = all(-1.9515295891e-4f);
    s = fma(s, square, all(8.3321608736e-3f));
    s = fma(s, square, all(-1.6666654611e-1f));
    s = fma(s * square, r, r);
    Floats c = all(2.443315711809948e-5f);
    for (const float a : {-1.388731625493765e-3f, 4.166664568298827e-2f, -0.5f, 1.0f}) c = fma(c, square, all(a));
    // In quarters 1 and 3 the two are swapped; the sine is negative in 2 and 3, the cosine in 1 and 2.
    const Integers quarter = integers(n);
    const Mask swapped = has_bits(quarter, 1);
    const auto signed_in = [](const Integers& half, const Floats& size) { return choose(has_bits(half, 2), -size, size); };
    sine = signed_in(quarter, choose(swapped, c, s));
    cosine = signed_in(quarter + integers(all(1.0f)), choose(swapped, s, c));
}

}  // namespace
