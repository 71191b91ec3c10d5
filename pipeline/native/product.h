// product: packed matrix products, one panel of 32 outputs at a time, in three kinds of arithmetic.
//
// In:    rows of float32 inputs, packed weights (pipeline/model/cpu/packing.py packs them)
// Out:   sums, 32 per row and panel
// Owns:  a thread's tile registers during the lifetime of a Multiplier
// Never: any sum across threads or across rows
//
// In every kind, a row's sums are one fixed chain of operations that does not depend on other rows:
//
//   Plain<W>   AVX-512: weights are widened, products and sums are float32
//   TileBf16   AMX: an input is split into two bfloat16 numbers: the nearest, and the remainder
//   TileInt8   AMX: a row of inputs becomes 16-bit integers with one scale, each of two bytes; the sums are exact
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"
#include "tiles.h"

namespace {

constexpr int BLOCK = 8;       // rows of one Plain block: 16 sums and their factors fill the registers
constexpr int AHEAD = 2048;    // bytes of weights that Plain prefetches

struct bf16 {
    uint16_t bits;
};

// A packed product. `scales` has one number per output for int8 weights, else it is null.
struct Product {
    const void* weights;
    const float* scales;
};

// The sums of one row in one panel: two vectors of 16 outputs.
using Sums = __m512[2];

inline void store_bf16(bf16* to, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded_bits(x)));
}

// `load` reads the panel's weights of DEPTH inputs.
template <class W>
struct Loader;

template <>
struct Loader<float> {
    static constexpr int DEPTH = 1;
    static void load(const float* w, __m512 (&out)[1][2]) {
        out[0][0] = _mm512_loadu_ps(w);
        out[0][1] = _mm512_loadu_ps(w + LANES);
    }
};

template <>
struct Loader<bf16> {
    static constexpr int DEPTH = 2;  // two inputs' weights share a 32 bit lane: the even input in its low half
    static void load(const bf16* w, __m512 (&out)[2][2]) {
        const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
        for (int half = 0; half < 2; half++) {
            const __m512i pair = _mm512_loadu_si512(w + half * PANEL);
            out[0][half] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
            out[1][half] = _mm512_castsi512_ps(_mm512_and_epi32(pair, high));
        }
    }
};

template <>
struct Loader<int8_t> {
    static constexpr int DEPTH = 1;
    static void load(const int8_t* w, __m512 (&out)[1][2]) {
        for (int half = 0; half < 2; half++) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w + half * LANES));
            out[0][half] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
        }
    }
};

// The sums of one panel for M rows: acc[m] += x[m] . weights.
template <class W, int M>
inline void panel_sums(const W* w, const float* x, int64_t inputs, Sums (&acc)[M]) {
    constexpr int DEPTH = Loader<W>::DEPTH;
    for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < inputs; i += DEPTH) {
        ask_for(reinterpret_cast<const char*>(w) + AHEAD, DEPTH * PANEL * sizeof(W));
        __m512 weights[DEPTH][2];
        Loader<W>::load(w, weights);
        w += DEPTH * PANEL;
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int d = 0; d < DEPTH; d++) {
                const __m512 value = _mm512_set1_ps(x[m * inputs + i + d]);
                acc[m][0] = _mm512_fmadd_ps(weights[d][0], value, acc[m][0]);
                acc[m][1] = _mm512_fmadd_ps(weights[d][1], value, acc[m][1]);
            }
    }
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
        const auto block = [&]<int M>(int64_t first) {
            Sums acc[M];
            panel_sums<W, M>(w, x + first * inputs, inputs, acc);
            for (int m = 0; m < M; m++) {
                if (p.scales)
                    for (int half = 0; half < 2; half++)
                        acc[m][half] = _mm512_mul_ps(acc[m][half], _mm512_loadu_ps(p.scales + number * PANEL + half * LANES));
                done(first + m, acc[m]);
            }
        };
        int64_t first = 0;
        for (; first + BLOCK <= rows; first += BLOCK) block.template operator()<BLOCK>(first);
        switch (rows - first) {
            case 1: block.template operator()<1>(first); break;
            case 2: block.template operator()<2>(first); break;
            case 3: block.template operator()<3>(first); break;
            case 4: block.template operator()<4>(first); break;
            case 5: block.template operator()<5>(first); break;
            case 6: block.template operator()<6>(first); break;
            case 7: block.template operator()<7>(first); break;
        }
    }

private:
    const float* x = nullptr;
    int64_t rows = 0, inputs = 0;
};

// Splits a number into two of a tile's type, and joins their sums.
struct TileBf16 {
    using Weight = bf16;
    using Sum = float;

    // Writes a row's two planes of `inputs` numbers each; returns the row's scale.
    static float split(const float* x, int64_t inputs, bf16* high, bf16* low) {
        for (int64_t i = 0; i < inputs; i += LANES) {
            __m256i nearest, rest;
            ::split(_mm512_loadu_ps(x + i), nearest, rest);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(high + i), nearest);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(low + i), rest);
        }
        return 1.0f;
    }

    static __m512 whole(const float* high, const float* low) { return _mm512_add_ps(_mm512_loadu_ps(high), _mm512_loadu_ps(low)); }

    static void multiply() {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
};

// The conversion of a row of numbers to integers.
struct Rounding {
    __m512 factor;  // an integer is the nearest to number x factor
    float scale;    // a number is about integer x scale; NaN if any number is NaN
};

// Scales the row so that its largest number becomes `largest`.
inline Rounding rounding(const float* x, int64_t inputs, float largest) {
    __m512 highest = _mm512_setzero_ps();
    __mmask16 broken = 0;
    for (int64_t i = 0; i < inputs; i += LANES) {
        const __m512 v = _mm512_loadu_ps(x + i);
        highest = _mm512_max_ps(highest, _mm512_abs_ps(v));
        broken |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);  // a maximum may lose a NaN
    }
    const float most = _mm512_reduce_max_ps(highest);
    return {_mm512_set1_ps(most > 1e-30f ? largest / most : 0.0f), broken ? NAN : most / largest};
}

struct TileInt8 {
    using Weight = int8_t;
    using Sum = int32_t;
    static constexpr float LARGEST = 127 * 256 + 127;

    static float split(const float* x, int64_t inputs, int8_t* high, int8_t* low) {
        const auto [factor, scale] = rounding(x, inputs, LARGEST);
        const __m512i half = _mm512_set1_epi32(128);
        for (int64_t i = 0; i < inputs; i += LANES) {
            const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor));
            const __m512i least = _mm512_sub_epi32(_mm512_and_si512(_mm512_add_epi32(whole, half), _mm512_set1_epi32(255)), half);
            const __m512i most_significant = _mm512_srai_epi32(_mm512_sub_epi32(whole, least), 8);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(least));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(most_significant));
        }
        return scale;
    }

    static __m512 whole(const int32_t* high, const int32_t* low) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(high)), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(_mm512_loadu_si512(low)));
    }

    static void multiply() {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
};

// Tiles 0 to 3: sums (high 0, high 1, low 0, low 1). 4, 5: inputs (high, low). 6, 7: the panel's weights.
template <class Tile>
class Multiplier {
public:
    // `scratch` has 4 bytes per input of all rows, and 4 per row.
    explicit Multiplier(void* scratch) : planes(static_cast<Weight*>(scratch)) {}
    Multiplier(const Multiplier&) = delete;
    ~Multiplier() { _tile_release(); }

    void take(const float* x, int64_t number, int64_t width) {
        rows = number, inputs = width;
        scales = reinterpret_cast<float*>(planes + 2 * rows * inputs);
        for (int64_t row = 0; row < rows; row++)
            scales[row] = Tile::split(x + row * inputs, inputs, planes + row * inputs, planes + (rows + row) * inputs);
    }

    template <class Done>
    void panel(const Product& p, int64_t number, Done done) {
        const Weight* const weights = static_cast<const Weight*>(p.weights) + number * PANEL * inputs;
        for (int64_t first = 0; first < rows; first += TILE_ROWS) {
            const int64_t count = rows - first < TILE_ROWS ? rows - first : TILE_ROWS;
            alignas(64) typename Tile::Sum sums[4][TILE_ROWS][LANES];
            multiply(weights, planes + first * inputs, planes + (rows + first) * inputs, count, sums);
            for (int64_t row = 0; row < count; row++) {
                Sums whole;
                for (int half = 0; half < 2; half++) {
                    whole[half] = Tile::whole(sums[half][row], sums[2 + half][row]);
                    if (p.scales) {
                        const __m512 scale = _mm512_loadu_ps(p.scales + number * PANEL + half * LANES);
                        whole[half] = _mm512_mul_ps(whole[half], _mm512_mul_ps(scale, _mm512_set1_ps(scales[first + row])));
                    }
                }
                done(first + row, whole);
            }
        }
    }

private:
    using Weight = typename Tile::Weight;
    static constexpr int64_t DEPTH = 64 / sizeof(Weight);  // inputs per tile

    void multiply(const Weight* w, const Weight* high, const Weight* low, int64_t count, typename Tile::Sum (&sums)[4][TILE_ROWS][LANES]) {
        configure(count);
        const int64_t stride = inputs * static_cast<int64_t>(sizeof(Weight));
        asm volatile("" ::: "memory");  // the compiler does not know that tiles read and write memory
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t i = 0; i < inputs; i += DEPTH, w += PANEL * DEPTH) {
            ask_for(reinterpret_cast<const char*>(w) + TILE_AHEAD, PANEL * DEPTH * sizeof(Weight));
            _tile_loadd(4, high + i, stride);
            _tile_loadd(5, low + i, stride);
            _tile_loadd(6, w, 64);
            _tile_loadd(7, w + LANES * DEPTH, 64);
            Tile::multiply();
        }
        _tile_stored(0, sums[0], 64);
        _tile_stored(1, sums[1], 64);
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
        asm volatile("" ::: "memory");
    }

    void configure(int64_t count) {
        if (count == configured) return;
        configure_tiles(count);
        configured = count;
    }

    Weight* planes;  // (2, rows, inputs)
    float* scales = nullptr;
    int64_t rows = 0, inputs = 0, configured = 0;
};

}  // namespace
