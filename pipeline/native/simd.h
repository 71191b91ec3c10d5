// simd: AVX-512 functions that all native code shares.
//
// In:    registers
// Out:   registers
// Owns:  nothing
// Never: memory, except prefetching
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

namespace {

constexpr int LANES = 16;         // float32 numbers of a register
constexpr int PANEL = 2 * LANES;  // outputs computed together; a panel's weights are contiguous in memory

// Prefetches `bytes` that will be read soon.
inline void ask_for(const void* from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(static_cast<const char*>(from) + line, _MM_HINT_T0);
}

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

// Nearest bfloat16, ties to even; NaN stays NaN. 16 numbers in the low halves of 16 lanes.
inline __m512i rounded_bits(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    return _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
}

// Splits 16 numbers into two bfloat16 numbers each: the nearest, and the nearest to the remainder.
inline void split(__m512 x, __m256i& high, __m256i& low) {
    const __m512i nearest = rounded_bits(x);
    high = _mm512_cvtepi32_epi16(nearest);
    low = _mm512_cvtepi32_epi16(rounded_bits(_mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(nearest, 16)))));
}

}  // namespace
