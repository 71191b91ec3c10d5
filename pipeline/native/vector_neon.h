// vector_neon: four registers of NEON are the sixteen numbers of a vector.
//
// In:    registers
// Out:   registers
// Owns:  nothing
// Never: memory beyond what a load or store names; an order of summation of its own: simd.h gives it
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace {

using Register = float32x4_t;
using IntegerRegister = int32x4_t;
using MaskRegister = uint32x4_t;
constexpr int REGISTERS = 4;  // of a vector

inline Register load_register(const float* p) { return vld1q_f32(p); }
inline void store_register(float* p, Register x) { vst1q_f32(p, x); }
inline Register same(float x) { return vdupq_n_f32(x); }
inline Register fma(Register a, Register b, Register c) { return vfmaq_f32(c, a, b); }
inline Register fnma(Register a, Register b, Register c) { return vfmsq_f32(c, a, b); }
// The second one where either is NaN.
inline Register min(Register a, Register b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Register max(Register a, Register b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Register absolute(Register x) { return vabsq_f32(x); }
inline Register nearest(Register x) { return vrndnq_f32(x); }
inline IntegerRegister integers(Register x) { return vcvtnq_s32_f32(x); }
inline Register floats(IntegerRegister x) { return vcvtq_f32_s32(x); }
inline Register add(Register a, Register b) { return vaddq_f32(a, b); }
inline IntegerRegister no_integers() { return vdupq_n_s32(0); }
inline IntegerRegister add(IntegerRegister a, IntegerRegister b) { return vaddq_s32(a, b); }

// x times 2 to the power of n, a whole number from -126 to 127.
inline Register scaled(Register x, Register n) {
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23)));
}

inline MaskRegister less(Register a, Register b) { return vcltq_f32(a, b); }
inline MaskRegister unordered(Register x) { return vmvnq_u32(vceqq_f32(x, x)); }
inline MaskRegister has_bits(IntegerRegister x, int bits) { return vtstq_s32(x, vdupq_n_s32(bits)); }
inline MaskRegister either(MaskRegister a, MaskRegister b) { return vorrq_u32(a, b); }
inline bool any(MaskRegister mask) { return vmaxvq_u32(mask); }
inline bool every(MaskRegister mask) { return vminvq_u32(mask); }
inline Register choose(MaskRegister mask, Register yes, Register no) { return vbslq_f32(mask, yes, no); }
inline MaskRegister first_lanes_of_register(int64_t count) {
    const int32_t places[4] = {0, 1, 2, 3};
    const int least = count < 0 ? 0 : count > 4 ? 4 : static_cast<int>(count);
    return vcltq_s32(vld1q_s32(places), vdupq_n_s32(least));
}
inline Register load_first_of_register(const float* p, int64_t count) {
    if (count >= 4) return vld1q_f32(p);
    float numbers[4] = {};
    for (int64_t i = 0; i < count; i++) numbers[i] = p[i];
    return vld1q_f32(numbers);
}

// Nearest bfloat16, ties to even; NaN stays NaN.
inline void store_rounded(uint16_t* to, Register x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    vst1_u16(to, vmovn_u32(vbslq_u32(unordered(x), vdupq_n_u32(0x7fc0), up)));
}

// Reads a register's worth of pairs of bfloat16: the even numbers and the odd ones.
inline void load_pairs(const uint16_t* from, Register& even, Register& odd) {
    const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(from));
    even = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
    odd = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)));
}

inline Register load_bytes_of_register(const int8_t* from) {
    int32_t bytes;
    __builtin_memcpy(&bytes, from, sizeof(bytes));
    const int8x8_t eight = vreinterpret_s8_s32(vdup_n_s32(bytes));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(eight))));
}

// Integers beyond the type become its limits.
inline void store_shorts(int16_t* to, const IntegerRegister (&x)[REGISTERS]) {
    for (int i = 0; i < REGISTERS; i++) vst1_s16(to + 4 * i, vqmovn_s32(x[i]));
}

inline void store_bytes(int8_t* to, const IntegerRegister (&x)[REGISTERS]) {
    for (int i = 0; i < REGISTERS; i += 2) vst1_s8(to + 4 * i, vqmovn_s16(vcombine_s16(vqmovn_s32(x[i]), vqmovn_s32(x[i + 1]))));
}

// Eight 16-bit integers.
using ShortRegister = int16x8_t;

inline ShortRegister load_shorts(const int16_t* from) { return vld1q_s16(from); }
inline ShortRegister widened(const int8_t* from) { return vmovl_s8(vld1_s8(from)); }

// A pair of 16-bit integers in every lane.
inline ShortRegister same_pair(const int16_t* from) {
    int32_t pair;
    __builtin_memcpy(&pair, from, sizeof(pair));
    return vreinterpretq_s16_s32(vdupq_n_s32(pair));
}

// Makes the compiler finish with this number first: with all products before all sums, the registers would not suffice.
inline IntegerRegister kept(IntegerRegister x) {
    asm volatile("" : "+w"(x));
    return x;
}

// Adds to each lane the products of its pair.
inline IntegerRegister multiply_pairs(ShortRegister a, ShortRegister b, IntegerRegister sums) {
    return vaddq_s32(sums, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}

// Sixteen bytes.
using ByteRegister = uint8x16_t;

inline IntegerRegister same(int32_t x) { return vdupq_n_s32(x); }
inline ByteRegister same_sixteen(const uint8_t* from) { return vld1q_u8(from); }

// Four bytes in every lane.
inline ByteRegister same_four(const int8_t* from) {
    int32_t four;
    __builtin_memcpy(&four, from, sizeof(four));
    return vreinterpretq_u8_s32(vdupq_n_s32(four));
}

// What codes of 4 bits stand for: the low half of every byte, and the high one.
inline void look_up(ByteRegister sixteen, const uint8_t* from, ByteRegister& low, ByteRegister& high) {
    const uint8x16_t codes = vld1q_u8(from);
    low = vqtbl1q_u8(sixteen, vandq_u8(codes, vdupq_n_u8(15)));
    high = vqtbl1q_u8(sixteen, vshrq_n_u8(codes, 4));
}

// Adds to each lane the products of its four bytes; those of a are below 128.
inline IntegerRegister multiply_fours(ByteRegister a, ByteRegister b, IntegerRegister sums) {
    const int8x16_t x = vreinterpretq_s8_u8(a), y = vreinterpretq_s8_u8(b);
    return vpadalq_s16(sums, vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y)));
}

// Lane i: the sum of the four numbers of a, b, c or d, as (0 + 2) + (1 + 3).
inline Register sums_of_fours(Register a, Register b, Register c, Register d) {
    const auto halves = [](Register x, Register y) {  // x0 + x2, x1 + x3, y0 + y2, y1 + y3
        return vaddq_f32(vcombine_f32(vget_low_f32(x), vget_low_f32(y)), vcombine_f32(vget_high_f32(x), vget_high_f32(y)));
    };
    return vpaddq_f32(halves(a, b), halves(c, d));
}

inline IntegerRegister sums_of_fours(IntegerRegister a, IntegerRegister b, IntegerRegister c, IntegerRegister d) {
    return vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
}

inline void store_folded(float* to, Register x) { vst1q_f32(to, x); }
inline void store_folded(float* to, IntegerRegister x) { vst1q_f32(to, vcvtq_f32_s32(x)); }

inline float sum_of_register(Register x) {
    const float32x2_t two = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(vpadd_f32(two, two), 0);
}

inline float largest_of_register(Register x) {
    float numbers[4];
    vst1q_f32(numbers, x);
    const auto larger = [](float a, float b) { return a > b ? a : b; };
    return larger(larger(numbers[0], numbers[2]), larger(numbers[1], numbers[3]));
}

inline void relax() { asm volatile("yield" ::: "memory"); }

}  // namespace
