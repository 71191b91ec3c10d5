// panel: the sums of one panel of 32 outputs for a few rows, in float32.
//
// In:    a panel's packed weights (memory.py packs them), rows of float32 inputs
// Out:   sums, 32 per row
// Owns:  nothing
// Never: any sum across rows
//
// A row's sums are one fixed chain of operations, whatever the number of rows and whether both halves of a panel are summed
// in one pass or in two: as many sums as there are registers for.
#pragma once

#include <cstdint>

#include "simd.h"

namespace {

constexpr int WIDE_ROWS = REGISTERS == 1 ? 12 : 2;  // most rows whose sums of a whole panel fit into the registers

struct bf16 {
    uint16_t bits;
};

// The sums of one row in one panel: two vectors of 16 outputs.
using Sums = Floats[2];

// `load` reads the weights of DEPTH inputs and 16 outputs.
template <class W>
struct Loader;

template <>
struct Loader<float> {
    static constexpr int DEPTH = 1;
    static void load(const float* w, Floats (&out)[1]) { out[0] = ::load(w); }
};

template <>
struct Loader<bf16> {
    static constexpr int DEPTH = 2;  // two inputs' weights share a 32 bit lane: the even input in its low half
    static void load(const bf16* w, Floats (&out)[2]) { load_pairs(&w->bits, out[0], out[1]); }
};

template <>
struct Loader<int8_t> {
    static constexpr int DEPTH = 1;
    static void load(const int8_t* w, Floats (&out)[1]) { out[0] = load_bytes(w); }
};

// Adds to acc[m][h] the products of row m with 16 HALVES outputs of a panel. `input(m, i)` is input i of row m; AHEAD: bytes of
// weights prefetched, or 0.
template <class W, int AHEAD, int M, int HALVES, class Input>
[[gnu::always_inline]] inline void add_products(const W* w, int64_t inputs, Input input, Floats (&acc)[M][HALVES]) {
    constexpr int DEPTH = Loader<W>::DEPTH;
    for (int64_t i = 0; i < inputs; i += DEPTH) {
        if constexpr (AHEAD != 0) ask_for(reinterpret_cast<const char*>(w) + AHEAD, DEPTH * PANEL * sizeof(W));
        Floats weights[HALVES][DEPTH];
#pragma GCC unroll 2
        for (int half = 0; half < HALVES; half++) Loader<W>::load(w + half * DEPTH * LANES, weights[half]);
        w += DEPTH * PANEL;
#pragma GCC unroll 12
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int d = 0; d < DEPTH; d++) {
                const Floats value = all(input(m, i + d));
#pragma GCC unroll 2
                for (int half = 0; half < HALVES; half++) acc[m][half] = fma(weights[half][d], value, acc[m][half]);
            }
    }
}

// Adds to acc[m] the products of row m with a panel's 32 outputs.
template <class W, int AHEAD, int M, class Input>
[[gnu::always_inline]] inline void add_panel(const W* w, int64_t inputs, Input input, Sums (&acc)[M]) {
    constexpr int HALVES = M <= WIDE_ROWS ? 2 : 1;  // together
#pragma GCC unroll 2
    for (int half = 0; half < 2; half += HALVES) {
        Floats own[M][HALVES];
#pragma GCC unroll 12
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) own[m][h] = acc[m][half + h];
        add_products<W, AHEAD>(w + half * Loader<W>::DEPTH * LANES, inputs, input, own);
#pragma GCC unroll 12
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) acc[m][half + h] = own[m][h];
    }
}

}  // namespace
