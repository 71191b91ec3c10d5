// product_groups: packed matrix products with weights of 4 bits in groups, one panel of 32 outputs at a time.
//
// In:    rows of float32 inputs, packed weights (pipeline/model/cpu/four_bit.py packs them)
// Out:   sums, 32 per row and panel
// Owns:  the levels that a code of 4 bits stands for
// Never: any sum across threads or across rows
//
// 32 inputs of an output are a group: 32 codes and a scale in bfloat16. A row's inputs become integers of 8 bits with one scale
// for each group, so the sum of a group is exact. It is scaled and added in float32, group after group: one fixed chain for
// each row and output, the same on every processor.
#pragma once

#include <cmath>
#include <cstdint>

#include "product.h"

namespace {

constexpr int GROUP_INPUTS = 32;
constexpr int GROUPED_BLOCK = REGISTERS == 1 ? 8 : 4;  // rows computed together
constexpr int GROUPED_AHEAD = 4096;                    // bytes of weights prefetched
constexpr int64_t GROUP_SCALES = PANEL * 2, GROUP_CODES = PANEL * GROUP_INPUTS / 2;  // bytes of a panel's group

// What the codes stand for, LEVEL_ZERO subtracted. They lie closer together near zero, as weights do: the least squared error
// of normal numbers, and of the demo's weights, in groups of 32. Below 128, so that two products fit into 16 bits.
constexpr uint8_t LEVELS[16] = {1, 14, 24, 33, 40, 47, 53, 59, 65, 71, 76, 82, 89, 96, 105, 118};
constexpr int LEVEL_ZERO = 64;

struct Groups;

template <>
class Multiplier<Groups> {
public:
    // `scratch` has 4 bytes per input of all rows.
    explicit Multiplier(void* scratch) : numbers(static_cast<int8_t*>(scratch)) {}

    void take(const float* x, int64_t number, int64_t width) {
        rows = number, inputs = width, groups = width / GROUP_INPUTS;
        scales = reinterpret_cast<float*>(numbers + rows * inputs);
        offsets = reinterpret_cast<int32_t*>(scales + rows * groups);
        for (int64_t group = 0; group < rows * groups; group++, x += GROUP_INPUTS) {
            const Rounding how = rounding(x, GROUP_INPUTS, LARGEST);
            Floats total = zeros();
            for (int i = 0; i < GROUP_INPUTS; i += LANES) {
                const Floats scaled = load(x + i) * all(how.factor);
                store_bytes(numbers + group * GROUP_INPUTS + i, integers(scaled));
                total = total + nearest(scaled);
            }
            const float found = sum(total);
            scales[group] = how.scale;
            offsets[group] = std::isfinite(found) ? -LEVEL_ZERO * static_cast<int32_t>(found) : 0;  // else the scale is not finite
        }
    }

    template <class Done>
    void panel(const Product& p, int64_t number, Done done) const {
        const uint8_t* const w = static_cast<const uint8_t*>(p.weights) + number * groups * (GROUP_SCALES + GROUP_CODES);
        in_blocks<GROUPED_BLOCK>(rows, [&]<int M>(int64_t first) {
            Sums acc[M];
            add_groups(w, first, acc);
            for (int m = 0; m < M; m++) done(first + m, acc[m]);
        });
    }

private:
    static constexpr float LARGEST = 127;
    static constexpr int64_t BYTES = 2 * PANEL / REGISTERS;  // of a register: four inputs of each of its outputs

    template <int M>
    [[gnu::noinline]] void add_groups(const uint8_t* w, int64_t first, Sums (&acc)[M]) const {
        const ByteRegister levels = same_sixteen(LEVELS);
        const int8_t* x = numbers + first * inputs;
        for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = zeros();
        for (int64_t group = first * groups; group < (first + 1) * groups; group++, x += GROUP_INPUTS, w += GROUP_SCALES + GROUP_CODES) {
            Sums of_weights;
            load_pairs(reinterpret_cast<const uint16_t*>(w), of_weights[0], of_weights[1]);
            ask_for(w + GROUPED_AHEAD, GROUP_SCALES);
#pragma GCC unroll 4
            for (int r = 0; r < REGISTERS; r++) {
                IntegerRegister sums[M][2];
#pragma GCC unroll 12
                for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = same(offsets[group + m * groups]);
#pragma GCC unroll 8
                for (int i = 0; i < GROUP_INPUTS / 4; i++) {
                    const uint8_t* const codes = w + GROUP_SCALES + i * 2 * PANEL + r * BYTES;
                    if (r == 0) ask_for(codes + GROUPED_AHEAD, 2 * PANEL);
                    ByteRegister low, high;
                    look_up(levels, codes, low, high);
#pragma GCC unroll 12
                    for (int m = 0; m < M; m++) {
                        const ByteRegister four = same_four(x + m * inputs + 4 * i);
                        sums[m][0] = kept(multiply_fours(low, four, sums[m][0]));
                        sums[m][1] = kept(multiply_fours(high, four, sums[m][1]));
                    }
                }
#pragma GCC unroll 12
                for (int m = 0; m < M; m++) {
                    const Register of_inputs = same(scales[group + m * groups]);
#pragma GCC unroll 2
                    for (int half = 0; half < 2; half++)
                        acc[m][half].part[r] = fma(floats(sums[m][half]), Register(of_weights[half].part[r] * of_inputs), acc[m][half].part[r]);
                }
            }
        }
    }

    int8_t* numbers;             // (rows, inputs)
    float* scales = nullptr;     // (rows, groups)
    int32_t* offsets = nullptr;  // (rows, groups): what LEVEL_ZERO makes of the inputs' sum
    int64_t rows = 0, inputs = 0, groups = 0;
};

}  // namespace
