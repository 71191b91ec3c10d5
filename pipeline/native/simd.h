// simd: what native code shares about AVX-512.
//
// In:    registers
// Out:   registers
// Owns:  nothing
// Never: memory
#pragma once

#include <immintrin.h>

#include <initializer_list>

namespace {

constexpr int LANES = 16;         // float32 numbers of a register
constexpr int PANEL = 2 * LANES;  // outputs computed together; a panel's weights lie one after another in memory

// exp(x) to 2 units in the last place: x = n ln 2 + r, exp(r) by its series (coefficients of Cephes' expf).
inline __m512 exponential(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(88.3f), _mm512_max_ps(_mm512_set1_ps(-87.3f), x));  // in this order NaN stays NaN
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(c));
    y = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(y, r), r, r), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

}  // namespace
