// vector_avx512: one register of AVX-512 is all sixteen numbers of a vector.
//
// In:    registers
// Out:   registers
// Owns:  nothing
// Never: memory beyond what a load or store names; an order of summation of its own: simd.h gives it
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

using Register = __m512;
using IntegerRegister = __m512i;
using MaskRegister = __mmask16;
constexpr int REGISTERS = 1;  // of a vector

inline Register load_register(const float* p) { return _mm512_loadu_ps(p); }
inline void store_register(float* p, Register x) { _mm512_storeu_ps(p, x); }
inline Register same(float x) { return _mm512_set1_ps(x); }
inline Register fma(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }
inline Register fnma(Register a, Register b, Register c) { return _mm512_fnmadd_ps(a, b, c); }
inline Register min(Register a, Register b) { return _mm512_min_ps(a, b); }
inline Register max(Register a, Register b) { return _mm512_max_ps(a, b); }
inline Register absolute(Register x) { return _mm512_abs_ps(x); }
inline Register nearest(Register x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
inline Register scaled(Register x, Register n) { return _mm512_scalef_ps(x, n); }
inline IntegerRegister integers(Register x) { return _mm512_cvtps_epi32(x); }
inline Register floats(IntegerRegister x) { return _mm512_cvtepi32_ps(x); }

inline MaskRegister less(Register a, Register b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline MaskRegister unordered(Register x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
inline MaskRegister has_bits(IntegerRegister x, int bits) { return _mm512_test_epi32_mask(x, _mm512_set1_epi32(bits)); }
inline MaskRegister either(MaskRegister a, MaskRegister b) { return a | b; }
inline bool any(MaskRegister mask) { return mask; }
inline bool every(MaskRegister mask) { return mask == 0xffff; }
inline Register choose(MaskRegister mask, Register yes, Register no) { return _mm512_mask_mov_ps(no, mask, yes); }
inline MaskRegister first_lanes_of_register(int64_t count) { return static_cast<MaskRegister>(count >= 16 ? 0xffff : (1u << (count < 0 ? 0 : count)) - 1); }
inline Register load_first_of_register(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(first_lanes_of_register(count), p); }

inline Register add(Register a, Register b) { return _mm512_add_ps(a, b); }
inline IntegerRegister no_integers() { return _mm512_setzero_si512(); }
inline IntegerRegister add(IntegerRegister a, IntegerRegister b) { return _mm512_add_epi32(a, b); }

// Nearest bfloat16, ties to even; NaN stays NaN. In the low halves of the lanes.
inline IntegerRegister rounded_bits(Register x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    return _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
}

inline void store_rounded(uint16_t* to, Register x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded_bits(x)));
}

// Reads a register's worth of pairs of bfloat16: the even numbers and the odd ones.
inline void load_pairs(const uint16_t* from, Register& even, Register& odd) {
    const __m512i pairs = _mm512_loadu_si512(from);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd = _mm512_castsi512_ps(_mm512_and_epi32(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

inline Register load_bytes_of_register(const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

// Integers beyond int8 become its limits.
inline void store_bytes(int8_t* to, const IntegerRegister (&x)[REGISTERS]) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(x[0]));
}

inline void store_shorts(int16_t* to, const IntegerRegister (&x)[REGISTERS]) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x[0]));
}

// Thirty-two 16-bit integers.
using ShortRegister = __m512i;

inline ShortRegister load_shorts(const int16_t* from) { return _mm512_loadu_si512(from); }
inline ShortRegister widened(const int8_t* from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }

// A pair of 16-bit integers in every lane.
inline ShortRegister same_pair(const int16_t* from) {
    int32_t pair;
    __builtin_memcpy(&pair, from, sizeof(pair));
    return _mm512_set1_epi32(pair);
}

// Makes the compiler finish with this number first: with all products before all sums, the registers would not suffice.
inline IntegerRegister kept(IntegerRegister x) {
    asm volatile("" : "+v"(x));
    return x;
}

// Adds to each lane the products of its pair.
inline IntegerRegister multiply_pairs(ShortRegister a, ShortRegister b, IntegerRegister sums) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sums, a, b);
#else
    return _mm512_add_epi32(sums, _mm512_madd_epi16(a, b));
#endif
}

// Sixty-four bytes.
using ByteRegister = __m512i;

inline IntegerRegister same(int32_t x) { return _mm512_set1_epi32(x); }
inline ByteRegister same_sixteen(const uint8_t* from) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }

// Four bytes in every lane.
inline ByteRegister same_four(const int8_t* from) {
    int32_t four;
    __builtin_memcpy(&four, from, sizeof(four));
    return _mm512_set1_epi32(four);
}

// What codes of 4 bits stand for: the low half of every byte, and the high one.
inline void look_up(ByteRegister sixteen, const uint8_t* from, ByteRegister& low, ByteRegister& high) {
    const __m512i codes = _mm512_loadu_si512(from), half = _mm512_set1_epi8(15);
    low = _mm512_shuffle_epi8(sixteen, _mm512_and_si512(codes, half));
    high = _mm512_shuffle_epi8(sixteen, _mm512_and_si512(_mm512_srli_epi16(codes, 4), half));
}

// Adds to each lane the products of its four bytes; those of a are below 128.
inline IntegerRegister multiply_fours(ByteRegister a, ByteRegister b, IntegerRegister sums) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(sums, a, b);
#else
    return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1)));
#endif
}

// In every 128 bits, lane i: the sum of the four numbers of a, b, c or d, as (0 + 2) + (1 + 3).
inline Register sums_of_fours(Register a, Register b, Register c, Register d) {
    const Register low = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const Register high = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(low), _mm512_castps_pd(high))),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(low), _mm512_castps_pd(high))));
}

inline IntegerRegister sums_of_fours(IntegerRegister a, IntegerRegister b, IntegerRegister c, IntegerRegister d) {
    const __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
}

// The upper half added to the lower one, until four numbers are left.
inline void store_folded(float* to, Register x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

inline void store_folded(float* to, IntegerRegister x) {
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    _mm_storeu_ps(to, _mm_cvtepi32_ps(_mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1))));
}

inline float sum_of_register(Register x) { return _mm512_reduce_add_ps(x); }
inline float largest_of_register(Register x) { return _mm512_reduce_max_ps(x); }

inline void relax() { _mm_pause(); }

}  // namespace
