// vector_avx2: two registers of AVX2 are the sixteen numbers of a vector.
//
// In:    registers
// Out:   registers
// Owns:  nothing
// Never: memory beyond what a load or store names; an order of summation of its own: simd.h gives it
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

using Register = __m256;
using IntegerRegister = __m256i;
using MaskRegister = __m256;
constexpr int REGISTERS = 2;  // of a vector

inline Register load_register(const float* p) { return _mm256_loadu_ps(p); }
inline void store_register(float* p, Register x) { _mm256_storeu_ps(p, x); }
inline Register same(float x) { return _mm256_set1_ps(x); }
inline Register fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
inline Register fnma(Register a, Register b, Register c) { return _mm256_fnmadd_ps(a, b, c); }
inline Register min(Register a, Register b) { return _mm256_min_ps(a, b); }
inline Register max(Register a, Register b) { return _mm256_max_ps(a, b); }
inline Register absolute(Register x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline Register nearest(Register x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline IntegerRegister integers(Register x) { return _mm256_cvtps_epi32(x); }
inline Register floats(IntegerRegister x) { return _mm256_cvtepi32_ps(x); }
inline Register add(Register a, Register b) { return _mm256_add_ps(a, b); }
inline IntegerRegister no_integers() { return _mm256_setzero_si256(); }
inline IntegerRegister add(IntegerRegister a, IntegerRegister b) { return _mm256_add_epi32(a, b); }

// x times 2 to the power of n, a whole number from -126 to 127.
inline Register scaled(Register x, Register n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

inline MaskRegister less(Register a, Register b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline MaskRegister unordered(Register x) { return _mm256_cmp_ps(x, x, _CMP_UNORD_Q); }
inline MaskRegister has_bits(IntegerRegister x, int bits) {
    const __m256i wanted = _mm256_set1_epi32(bits);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(x, wanted), wanted));
}
inline MaskRegister either(MaskRegister a, MaskRegister b) { return _mm256_or_ps(a, b); }
inline bool any(MaskRegister mask) { return _mm256_movemask_ps(mask); }
inline bool every(MaskRegister mask) { return _mm256_movemask_ps(mask) == 0xff; }
inline Register choose(MaskRegister mask, Register yes, Register no) { return _mm256_blendv_ps(no, yes, mask); }
inline MaskRegister first_lanes_of_register(int64_t count) {
    const int least = count < 0 ? 0 : count > 8 ? 8 : static_cast<int>(count);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(least), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
inline Register load_first_of_register(const float* p, int64_t count) { return _mm256_maskload_ps(p, _mm256_castps_si256(first_lanes_of_register(count))); }

// Nearest bfloat16, ties to even; NaN stays NaN.
inline void store_rounded(uint16_t* to, Register x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i whole = _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(unordered(x)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}

// Reads a register's worth of pairs of bfloat16: the even numbers and the odd ones.
inline void load_pairs(const uint16_t* from, Register& even, Register& odd) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

inline Register load_bytes_of_register(const int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

// Sixteen integers as 16-bit ones; those beyond become the limits.
inline __m256i narrowed(const IntegerRegister (&x)[REGISTERS]) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(x[0], x[1]), 0b11011000);
}

// Integers beyond int8 become its limits.
inline void store_bytes(int8_t* to, const IntegerRegister (&x)[REGISTERS]) {
    const __m256i shorts = narrowed(x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1)));
}

inline void store_shorts(int16_t* to, const IntegerRegister (&x)[REGISTERS]) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed(x));
}

// Sixteen 16-bit integers.
using ShortRegister = __m256i;

inline ShortRegister load_shorts(const int16_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline ShortRegister widened(const int8_t* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }

// A pair of 16-bit integers in every lane.
inline ShortRegister same_pair(const int16_t* from) {
    int32_t pair;
    __builtin_memcpy(&pair, from, sizeof(pair));
    return _mm256_set1_epi32(pair);
}

// Makes the compiler finish with this number first: with all products before all sums, the registers would not suffice.
inline IntegerRegister kept(IntegerRegister x) {
    asm volatile("" : "+x"(x));
    return x;
}

// Adds to each lane the products of its pair.
inline IntegerRegister multiply_pairs(ShortRegister a, ShortRegister b, IntegerRegister sums) {
#if defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sums, a, b);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpwssd_epi32(sums, a, b);
#else
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
#endif
}

// Thirty-two bytes.
using ByteRegister = __m256i;

inline IntegerRegister same(int32_t x) { return _mm256_set1_epi32(x); }
inline ByteRegister same_sixteen(const uint8_t* from) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }

// Four bytes in every lane.
inline ByteRegister same_four(const int8_t* from) {
    int32_t four;
    __builtin_memcpy(&four, from, sizeof(four));
    return _mm256_set1_epi32(four);
}

// What codes of 4 bits stand for: the low half of every byte, and the high one.
inline void look_up(ByteRegister sixteen, const uint8_t* from, ByteRegister& low, ByteRegister& high) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), half = _mm256_set1_epi8(15);
    low = _mm256_shuffle_epi8(sixteen, _mm256_and_si256(codes, half));
    high = _mm256_shuffle_epi8(sixteen, _mm256_and_si256(_mm256_srli_epi16(codes, 4), half));
}

// Adds to each lane the products of its four bytes; those of a are below 128.
inline IntegerRegister multiply_fours(ByteRegister a, ByteRegister b, IntegerRegister sums) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sums, a, b);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sums, a, b);
#else
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
}

// In every 128 bits, lane i: the sum of the four numbers of a, b, c or d, as (0 + 2) + (1 + 3).
inline Register sums_of_fours(Register a, Register b, Register c, Register d) {
    const Register low = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const Register high = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(low), _mm256_castps_pd(high))),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(low), _mm256_castps_pd(high))));
}

inline IntegerRegister sums_of_fours(IntegerRegister a, IntegerRegister b, IntegerRegister c, IntegerRegister d) {
    const __m256i low = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    const __m256i high = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(low, high), _mm256_unpackhi_epi64(low, high));
}

// The upper half added to the lower one.
inline void store_folded(float* to, Register x) { _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1))); }
inline void store_folded(float* to, IntegerRegister x) {
    _mm_storeu_ps(to, _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1))));
}

inline float sum_of_register(Register x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline float largest_of_register(Register x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline void relax() { _mm_pause(); }

}  // namespace
