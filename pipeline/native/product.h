// product: packed matrix products, one panel of 32 outputs at a time.
//
// In:    rows of float32 inputs, packed weights (pipeline/model/cpu/packing.py packs them)
// Out:   sums, 32 per row and panel
// Owns:  nothing
// Never: any sum across threads or across rows
//
// In every kind of arithmetic, a row's sums are one fixed chain of operations that does not depend on other rows:
//
//   Plain<W>   weights are widened, products and sums are float32
//   Pairs      int8 weights, where a processor multiplies 16-bit integers in pairs; a row of inputs becomes 16-bit integers with one scale; the sums of 512 inputs are exact
//   TileBf16, TileInt8   AMX: product_tiles.h
#pragma once

#include <algorithm>
#include <cstdint>

#include "panel.h"
#include "simd.h"

namespace {

constexpr int BLOCK = REGISTERS == 1 ? 8 : 6;  // rows computed together
constexpr int PAIRS_BLOCK = REGISTERS == 1 ? 8 : 4;
constexpr int PLAIN_AHEAD = 2048;  // bytes of weights prefetched

// A packed product. `scales` has one number per output for int8 weights, else it is null.
struct Product {
    const void* weights;
    const float* scales;
};

// Calls block<M>(first) for blocks of rows: as many of MOST as there are, then one of the rest.
template <int MOST, class Block>
inline void in_blocks(int64_t rows, Block block) {
    int64_t first = 0;
    for (; first + MOST <= rows; first += MOST) block.template operator()<MOST>(first);
    const auto last = [&]<int M>(auto&& smaller) {
        if constexpr (M > 0) {
            if (rows - first == M) return block.template operator()<M>(first);
            smaller.template operator()<M - 1>(smaller);
        }
    };
    last.template operator()<MOST - 1>(last);
}

// A Multiplier belongs to one thread. `take` prepares the rows; `panel` then calls done(row, sums) for each of them.
template <class Arithmetic>
class Multiplier;

template <class W>
struct Plain;

template <class W>
class Multiplier<Plain<W>> {
public:
    explicit Multiplier(void*) {}

    void take(const float* rows_of_inputs, int64_t number, int64_t width) { x = rows_of_inputs, rows = number, inputs = width; }

    template <class Done>
    void panel(const Product& p, int64_t number, Done done) const {
        const W* w = static_cast<const W*>(p.weights) + number * PANEL * inputs;
        in_blocks<BLOCK>(rows, [&]<int M>(int64_t first) {
            Sums acc[M];
            panel_sums(w, x + first * inputs, inputs, acc);
            for (int m = 0; m < M; m++) {
                if (p.scales)
                    for (int half = 0; half < 2; half++) acc[m][half] = acc[m][half] * load(p.scales + number * PANEL + half * LANES);
                done(first + m, acc[m]);
            }
        });
    }

private:
    // Not inlined: among other code its sums would not stay in registers.
    template <int M>
    [[gnu::noinline]] static void panel_sums(const W* w, const float* x, int64_t inputs, Sums (&acc)[M]) {
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = zeros();
        add_panel<W, PLAIN_AHEAD>(w, inputs, [&](int m, int64_t i) { return x[m * inputs + i]; }, acc);
    }

    const float* x = nullptr;
    int64_t rows = 0, inputs = 0;
};

struct Pairs;

template <>
class Multiplier<Pairs> {
public:
    // `scratch` has 4 bytes per input of all rows, and 4 per row.
    explicit Multiplier(void* scratch) : numbers(static_cast<int16_t*>(scratch)) {}

    void take(const float* x, int64_t number, int64_t width) {
        rows = number, inputs = width;
        scales = reinterpret_cast<float*>(numbers + rows * inputs);
        for (int64_t row = 0; row < rows; row++) {
            const Rounding how = rounding(x + row * inputs, inputs, LARGEST);
            for (int64_t i = 0; i < inputs; i += LANES)
                store_shorts(numbers + row * inputs + i, integers(load(x + row * inputs + i) * all(how.factor)));
            scales[row] = how.scale;
        }
    }

    template <class Done>
    void panel(const Product& p, int64_t number, Done done) const {
        const int8_t* w = static_cast<const int8_t*>(p.weights) + number * PANEL * inputs;
        in_blocks<PAIRS_BLOCK>(rows, [&]<int M>(int64_t first) {
            Sums acc[M];
            if constexpr (M <= WIDE_ROWS) {
                exact_sums(w, numbers + first * inputs, inputs, acc);
            } else {
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++) {
                    Floats own[M][1];
                    exact_sums(w + half * PANEL, numbers + first * inputs, inputs, own);
                    for (int m = 0; m < M; m++) acc[m][half] = own[m][0];
                }
            }
            for (int m = 0; m < M; m++) {
                for (int half = 0; half < 2; half++)
                    acc[m][half] = acc[m][half] * (load(p.scales + number * PANEL + half * LANES) * all(scales[first + m]));
                done(first + m, acc[m]);
            }
        });
    }

private:
    static constexpr float LARGEST = 32767;
    static constexpr int64_t EXACT = 512;  // inputs whose products are summed as integers: 512 x 32767 x 127 < 2^31

    // The sums of 16 HALVES outputs for M rows; the weights of two inputs are adjacent.
    template <int M, int HALVES>
    [[gnu::noinline]] static void exact_sums(const int8_t* w, const int16_t* x, int64_t inputs, Floats (&acc)[M][HALVES]) {
        for (int m = 0; m < M; m++)
            for (int half = 0; half < HALVES; half++) acc[m][half] = zeros();
        for (int64_t begin = 0; begin < inputs; begin += EXACT) {
            IntegerRegister sums[M][HALVES][REGISTERS];
#pragma GCC unroll 12
            for (int m = 0; m < M; m++)
#pragma GCC unroll 2
                for (int half = 0; half < HALVES; half++)
#pragma GCC unroll 4
                    for (int r = 0; r < REGISTERS; r++) sums[m][half][r] = no_integers();
            for (int64_t i = begin; i < std::min(inputs, begin + EXACT); i += 2, w += 2 * PANEL) {
                ask_for(w + PLAIN_AHEAD, 2 * PANEL);
                ShortRegister weights[HALVES][REGISTERS];
#pragma GCC unroll 2
                for (int half = 0; half < HALVES; half++)
#pragma GCC unroll 4
                    for (int r = 0; r < REGISTERS; r++) weights[half][r] = widened(w + half * PANEL + r * SHORTS);
#pragma GCC unroll 12
                for (int m = 0; m < M; m++) {
                    const ShortRegister pair = same_pair(x + m * inputs + i);
#pragma GCC unroll 2
                    for (int half = 0; half < HALVES; half++)
#pragma GCC unroll 4
                        for (int r = 0; r < REGISTERS; r++)
                            sums[m][half][r] = kept(multiply_pairs(weights[half][r], pair, sums[m][half][r]));
                }
            }
#pragma GCC unroll 12
            for (int m = 0; m < M; m++)
#pragma GCC unroll 2
                for (int half = 0; half < HALVES; half++)
#pragma GCC unroll 4
                    for (int r = 0; r < REGISTERS; r++)
                        acc[m][half].part[r] = add(acc[m][half].part[r], floats(sums[m][half][r]));
        }
    }

    int16_t* numbers;  // (rows, inputs)
    float* scales = nullptr;
    int64_t rows = 0, inputs = 0;
};

}  // namespace
