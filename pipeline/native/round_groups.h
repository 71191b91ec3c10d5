// round_groups: weights of 4 bits in groups, each group with the scale of the least squared error.
//
// In:    weights in float32
// Out:   a code for each weight and a bfloat16 scale for each group, as product_groups.h reads them
// Owns:  which scales are tried
// Never: the order in memory (pipeline/model/cpu/four_bit.py)
//
// A few scales of either sign are tried: the levels reach further down than up. Each leads to levels, and these to their own
// best scale. Sums have one order, so every processor chooses the same codes.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "product_groups.h"
#include "team.h"

namespace {

constexpr int GROUP_VECTORS = GROUP_INPUTS / LANES;
constexpr int TRIED = 8;                                        // scales of each sign
constexpr float FIRST_TRIED = 0.75f, TRIED_APART = 0.45f / 7;  // the largest weight over the farthest level
constexpr float FARTHEST = LEVEL_ZERO - LEVELS[0];

inline float bf16_nearest(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// Replaces numbers in units of a scale by their levels, or by their codes.
template <bool CODES>
inline Floats leveled(const Floats& x) {
    const auto of = [](int code) { return static_cast<float>(CODES ? code : LEVELS[code] - LEVEL_ZERO); };
    Floats found = all(of(0));
#pragma GCC unroll 15
    for (int code = 0; code < 15; code++) {
        const float edge = (LEVELS[code] + LEVELS[code + 1]) * 0.5f - LEVEL_ZERO;
        found = choose(less(all(edge), x), all(of(code + 1)), found);
    }
    return found;
}

// The scale of one group; NaN if a weight is not finite.
inline float best_scale(const float* weights) {
    Floats w[GROUP_VECTORS], sizes = zeros();
    bool finite = true;
    for (int i = 0; i < GROUP_VECTORS; i++) {
        w[i] = load(weights + i * LANES);
        finite &= every(less(absolute(w[i]), all(INFINITY)));
        sizes = max(absolute(w[i]), sizes);
    }
    if (!finite) return NAN;
    const float most = largest(sizes);
    float best = 0, explained = 0;
    for (int tried = 0; tried < 2 * TRIED; tried++) {
        const float first = most * (FIRST_TRIED + tried / 2 * TRIED_APART) / (tried % 2 ? -FARTHEST : FARTHEST);
        Floats products = zeros(), squares = zeros();
        for (int i = 0; i < GROUP_VECTORS; i++) {
            const Floats level = leveled<false>(w[i] * all(1.0f / first));
            products = fma(level, w[i], products);
            squares = fma(level, level, squares);
        }
        // The best scale for these levels is product / square; the squared error is then that of zeros, less this:
        const float product = sum(products), square = sum(squares), less_error = product * product / square;
        if (less_error > explained) explained = less_error, best = bf16_nearest(product / square);
    }
    return best;  // 0 for a group of zeros
}

// Rounds groups [0, count) of 32 weights.
inline void round_groups(const float* weights, int64_t count, int threads, uint8_t* codes, uint16_t* scales) {
    Crew::run(threads, [&](int64_t me, int64_t size) {
        for (int64_t group = count * me / size; group < count * (me + 1) / size; group++) {
            const float* const w = weights + group * GROUP_INPUTS;
            const float scale = best_scale(w);
            uint32_t bits;
            std::memcpy(&bits, &scale, sizeof(bits));
            scales[group] = static_cast<uint16_t>(bits >> 16);
            for (int i = 0; i < GROUP_INPUTS; i += LANES)
                store_bytes(reinterpret_cast<int8_t*>(codes) + group * GROUP_INPUTS + i, integers(leveled<true>(load(w + i) * all(1.0f / scale))));
        }
    });
}

}  // namespace
