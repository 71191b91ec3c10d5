// simd: vectors of sixteen numbers, whatever registers the processor has, and the functions that all native code shares.
//
// In:    vectors
// Out:   vectors
// Owns:  nothing
// Never: memory, except prefetching
//
// Every operation rounds as IEEE 754 says, and sums over the lanes of a vector are taken in one order. So a vector's numbers
// are the same on every processor, to the last bit.
#pragma once

#include <cstdint>
#include <initializer_list>

#if defined(__AVX512F__)
#include "vector_avx512.h"
#elif defined(__AVX2__)
#include "vector_avx2.h"
#else
#include "vector_neon.h"
#endif

namespace {

constexpr int LANES = 16;                      // float32 numbers of a vector
constexpr int WIDTH = LANES / REGISTERS;       // of a register
constexpr int PANEL = 2 * LANES;               // outputs computed together; a panel's weights are contiguous in memory
constexpr int SHORTS = PANEL / REGISTERS;      // 16-bit integers of a register

// Sixteen float32.
struct Floats {
    Register part[REGISTERS];
};

// Sixteen int32.
struct Integers {
    IntegerRegister part[REGISTERS];
};

// Sixteen times yes or no.
struct Mask {
    MaskRegister part[REGISTERS];
};

// Applies a function to the parts of vectors.
template <class Out, class Function, class... In>
[[gnu::always_inline]] inline Out each(Function function, const In&... in) {
    Out out;
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) out.part[i] = function(in.part[i]...);
    return out;
}

inline Floats operator+(const Floats& a, const Floats& b) { return each<Floats>([](Register x, Register y) { return Register(x + y); }, a, b); }
inline Floats operator-(const Floats& a, const Floats& b) { return each<Floats>([](Register x, Register y) { return Register(x - y); }, a, b); }
inline Floats operator*(const Floats& a, const Floats& b) { return each<Floats>([](Register x, Register y) { return Register(x * y); }, a, b); }
inline Floats operator/(const Floats& a, const Floats& b) { return each<Floats>([](Register x, Register y) { return Register(x / y); }, a, b); }

inline Floats operator-(const Floats& x) { return each<Floats>([](Register y) { return Register(-y); }, x); }
inline Integers operator+(const Integers& a, const Integers& b) {
    return each<Integers>([](IntegerRegister x, IntegerRegister y) { return add(x, y); }, a, b);
}

inline Floats all(float x) { return each<Floats>([x] { return same(x); }); }
inline Floats zeros() { return all(0.0f); }

// a b + c and c - a b, rounded once.
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return each<Floats>([](Register x, Register y, Register z) { return fma(x, y, z); }, a, b, c);
}
inline Floats fnma(const Floats& a, const Floats& b, const Floats& c) {
    return each<Floats>([](Register x, Register y, Register z) { return fnma(x, y, z); }, a, b, c);
}

// The second one where either is NaN.
inline Floats min(const Floats& a, const Floats& b) { return each<Floats>([](Register x, Register y) { return min(x, y); }, a, b); }
inline Floats max(const Floats& a, const Floats& b) { return each<Floats>([](Register x, Register y) { return max(x, y); }, a, b); }

inline Floats absolute(const Floats& x) { return each<Floats>([](Register y) { return absolute(y); }, x); }
inline Floats nearest(const Floats& x) { return each<Floats>([](Register y) { return nearest(y); }, x); }
inline Floats scaled(const Floats& x, const Floats& n) { return each<Floats>([](Register y, Register z) { return scaled(y, z); }, x, n); }
inline Integers integers(const Floats& x) { return each<Integers>([](Register y) { return integers(y); }, x); }
inline Floats floats(const Integers& x) { return each<Floats>([](IntegerRegister y) { return floats(y); }, x); }

inline Mask less(const Floats& a, const Floats& b) { return each<Mask>([](Register x, Register y) { return less(x, y); }, a, b); }
inline Mask unordered(const Floats& x) { return each<Mask>([](Register y) { return unordered(y); }, x); }
inline Mask has_bits(const Integers& x, int bits) { return each<Mask>([bits](IntegerRegister y) { return has_bits(y, bits); }, x); }
inline Mask either(const Mask& a, const Mask& b) { return each<Mask>([](MaskRegister x, MaskRegister y) { return either(x, y); }, a, b); }
inline Floats choose(const Mask& mask, const Floats& yes, const Floats& no) {
    return each<Floats>([](MaskRegister m, Register x, Register y) { return choose(m, x, y); }, mask, yes, no);
}

inline bool any(const Mask& mask) {
    bool found = false;
    for (const MaskRegister part : mask.part) found |= any(part);
    return found;
}

inline bool every(const Mask& mask) {
    bool found = true;
    for (const MaskRegister part : mask.part) found &= every(part);
    return found;
}

inline Floats load(const float* from) {
    Floats out;
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) out.part[i] = load_register(from + i * WIDTH);
    return out;
}

inline void store(float* to, const Floats& x) {
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) store_register(to + i * WIDTH, x.part[i]);
}

// The first `count` lanes; sixteen or more are all of them.
inline Mask first_lanes(int64_t count) {
    Mask out;
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) out.part[i] = first_lanes_of_register(count - i * WIDTH);
    return out;
}

// The first `count` numbers, then zeros; nothing behind them is read.
inline Floats load_first(const float* from, int64_t count) {
    Floats out;
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) out.part[i] = load_first_of_register(from + i * WIDTH, count - i * WIDTH);
    return out;
}

// Sixteen numbers as their nearest bfloat16, ties to even; NaN stays NaN.
inline void store_rounded(uint16_t* to, const Floats& x) {
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) store_rounded(to + i * WIDTH, x.part[i]);
}

// Thirty-two bfloat16 numbers: the even ones and the odd ones.
inline void load_pairs(const uint16_t* from, Floats& even, Floats& odd) {
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) load_pairs(from + 2 * i * WIDTH, even.part[i], odd.part[i]);
}

inline Floats load_bytes(const int8_t* from) {
    Floats out;
#pragma GCC unroll 4
    for (int i = 0; i < REGISTERS; i++) out.part[i] = load_bytes_of_register(from + i * WIDTH);
    return out;
}

// Integers beyond the type become its limits.
inline void store_bytes(int8_t* to, const Integers& x) { store_bytes(to, x.part); }

// Integers of 16 bits.
inline void store_shorts(int16_t* to, const Integers& x) { store_shorts(to, x.part); }

// The sums of four vectors: one tree of additions for each of them, first of lanes 0 + 2 and 1 + 3 of every four.
template <class Vector>
inline void store_four_sums(float* to, const Vector (&s)[4]) {
    Vector fours = each<Vector>([](auto a, auto b, auto c, auto d) { return sums_of_fours(a, b, c, d); }, s[0], s[1], s[2], s[3]);
#pragma GCC unroll 2
    for (int half = REGISTERS / 2; half; half /= 2)
#pragma GCC unroll 2
        for (int i = 0; i < half; i++) fours.part[i] = add(fours.part[i], fours.part[i + half]);
    store_folded(to, fours.part[0]);
}

// The sum of the lanes, and the largest: the upper half is joined to the lower one until one number is left.
inline float sum(const Floats& x) {
    Floats left = x;
#pragma GCC unroll 2
    for (int half = REGISTERS / 2; half; half /= 2)
#pragma GCC unroll 2
        for (int i = 0; i < half; i++) left.part[i] = add(left.part[i], left.part[i + half]);
    return sum_of_register(left.part[0]);
}

inline float largest(const Floats& x) {
    Register left = x.part[0];
    for (int i = 1; i < REGISTERS; i++) left = max(left, x.part[i]);
    return largest_of_register(left);
}

// Prefetches `bytes` that will be read soon.
inline void ask_for(const void* from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(static_cast<const char*>(from) + line, 0, 3);
}

// The same, into the core's second cache only: far ahead, there is no room in the first.
inline void ask_far(const void* from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(static_cast<const char*>(from) + line, 0, 2);
}

// exp(x) to 2 units in the last place: x = n ln 2 + r, exp(r) by its series (coefficients of Cephes' expf).
inline Floats exponential(Floats x) {
    x = min(all(88.3f), max(all(-87.3f), x));  // in this order NaN stays NaN
    const Floats n = nearest(x * all(1.44269504f));
    Floats r = fnma(n, all(0.693359375f), x);
    r = fnma(n, all(-2.12194440e-4f), r);
    Floats y = all(1.9875691500e-4f);
    for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) y = fma(y, r, all(c));
    return scaled(fma(y * r, r, r) + all(1.0f), n);
}

// The conversion of a row of numbers to integers.
struct Rounding {
    float factor;  // an integer is the nearest to number x factor
    float scale;   // a number is about integer x scale; NaN if any number is NaN
};

// Scales the row so that its largest number becomes `most`. `inputs` is a multiple of 16.
inline Rounding rounding(const float* x, int64_t inputs, float most) {
    Floats highest = zeros();
    Mask broken = unordered(highest);
    for (int64_t i = 0; i < inputs; i += LANES) {
        const Floats v = load(x + i);
        highest = max(highest, absolute(v));
        broken = either(broken, unordered(v));  // a maximum may lose a NaN
    }
    const float found = largest(highest);
    return {found > 1e-30f ? most / found : 0.0f, any(broken) ? __builtin_nanf("") : found / most};
}

}  // namespace
