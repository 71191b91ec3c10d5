// product_tiles: packed matrix products with AMX, one panel of 32 outputs at a time.
//
// In:    rows of float32 inputs, packed weights (pipeline/model/cpu/packing.py packs them)
// Out:   sums, 32 per row and panel
// Owns:  a thread's tile registers during the lifetime of a Multiplier
// Never: any sum across threads or across rows
//
//   TileBf16   an input is split into two bfloat16 numbers: the nearest, and the remainder
//   TileInt8   a row of inputs becomes 16-bit integers with one scale, each of two bytes; the sums are exact, so few rows,
//              which would leave a tile nearly empty, are multiplied as vectors
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "product.h"
#include "tiles.h"

namespace {

constexpr int FAR_AHEAD = 16384;  // bytes of weights prefetched

// Splits a number into two of a tile's type, and joins their sums.
struct TileBf16 {
    using Weight = bf16;
    using Sum = float;
    static constexpr int64_t FEW = 0;  // rows that are multiplied as vectors

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

    static void with_first() {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
    }
    static void with_second() {
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
};

struct TileInt8 {
    using Weight = int8_t;
    using Sum = int32_t;
    static constexpr int64_t FEW = 2;
    static constexpr float LARGEST = 127 * 256 + 127;

    static float split(const float* x, int64_t inputs, int8_t* high, int8_t* low) {
        const auto [factor, scale] = rounding(x, inputs, LARGEST);
        const __m512i half = _mm512_set1_epi32(128);
        for (int64_t i = 0; i < inputs; i += LANES) {
            const __m512i whole = integers(load(x + i) * all(factor)).part[0];
            const __m512i least = _mm512_sub_epi32(_mm512_and_si512(_mm512_add_epi32(whole, half), _mm512_set1_epi32(255)), half);
            const __m512i most_significant = _mm512_srai_epi32(_mm512_sub_epi32(whole, least), 8);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(least));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(most_significant));
        }
        return scale;
    }

    static __m512 whole(const int32_t* high, const int32_t* low) { return whole(_mm512_loadu_si512(high), _mm512_loadu_si512(low)); }

    static __m512 whole(__m512i high, __m512i low) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(low));
    }

    static void with_first() {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(2, 5, 6);
    }
    static void with_second() {
        _tile_dpbssd(1, 4, 7);
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
        if constexpr (Tile::FEW > 0)
            for (int64_t plane = 0; plane < 2 * rows && rows <= Tile::FEW; plane++) offsets[plane] = offset(planes + plane * inputs);
    }

    template <class Done>
    void panel(const Product& p, int64_t number, Done done) {
        const Weight* const weights = static_cast<const Weight*>(p.weights) + number * PANEL * inputs;
        if constexpr (Tile::FEW > 0)
            if (rows <= Tile::FEW) return in_blocks<Tile::FEW>(rows, [&]<int M>(int64_t) { vectors<M>(p, weights, number, done); });
        for (int64_t first = 0; first < rows; first += TILE_ROWS) {
            const int64_t count = rows - first < TILE_ROWS ? rows - first : TILE_ROWS;
            alignas(64) typename Tile::Sum sums[4][TILE_ROWS][LANES];
            multiply(weights, planes + first * inputs, planes + (rows + first) * inputs, count, sums);
            for (int64_t row = 0; row < count; row++) {
                Sums whole;
                for (int half = 0; half < 2; half++) {
                    whole[half].part[0] = Tile::whole(sums[half][row], sums[2 + half][row]);
                    if (p.scales) whole[half] = whole[half] * scale(p, number, half, first + row);
                }
                done(first + row, whole);
            }
        }
    }

private:
    using Weight = typename Tile::Weight;
    static constexpr int64_t DEPTH = 64 / sizeof(Weight);  // inputs per tile

    // Of a row's sums in one half of a panel.
    Floats scale(const Product& p, int64_t number, int half, int64_t row) const {
        return load(p.scales + number * PANEL + half * LANES) * all(scales[row]);
    }

    // The panel of M rows, all there are. The processor multiplies unsigned bytes by signed ones, so 128 is added to the weights,
    // and `offsets` takes it from the sums.
    template <int M, class Done>
    void vectors(const Product& p, const Weight* w, int64_t number, Done done) const {
        __m512i sums[M][2][2];  // of a row's planes and the panel's halves
        vector_sums(w, sums);
        for (int m = 0; m < M; m++) {
            Sums whole;
            for (int half = 0; half < 2; half++) {
                whole[half].part[0] = Tile::whole(sums[m][0][half], sums[m][1][half]);
                whole[half] = whole[half] * scale(p, number, half, m);
            }
            done(m, whole);
        }
    }

    template <int M>
    [[gnu::noinline]] void vector_sums(const Weight* w, __m512i (&out)[M][2][2]) const {
        const __m512i sign = _mm512_set1_epi8(-128);
        __m512i sums[M][2][2];
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
            for (int plane = 0; plane < 2; plane++) sums[m][plane][0] = sums[m][plane][1] = _mm512_set1_epi32(offsets[plane * M + m]);
        for (int64_t i = 0; i < inputs; i += DEPTH, w += PANEL * DEPTH) {
#pragma GCC unroll 4
            for (int64_t four = 0; four < DEPTH / 4; four++) {
                ask_far(w + FAR_AHEAD + four * 128, 128);
                __m512i weights[2];
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++)
                    weights[half] = _mm512_xor_si512(_mm512_loadu_si512(w + half * LANES * DEPTH + four * 64), sign);
#pragma GCC unroll 4
                for (int m = 0; m < M; m++)
#pragma GCC unroll 2
                    for (int plane = 0; plane < 2; plane++) {
                        const __m512i x = same_four(planes + (plane * M + m) * inputs + i + 4 * four);
#pragma GCC unroll 2
                        for (int half = 0; half < 2; half++)
                            sums[m][plane][half] = _mm512_dpbusd_epi32(sums[m][plane][half], weights[half], x);
                    }
            }
        }
        for (int m = 0; m < M; m++)
            for (int plane = 0; plane < 2; plane++)
                for (int half = 0; half < 2; half++) out[m][plane][half] = sums[m][plane][half];
    }

    // -128 times the sum of a plane's numbers.
    int32_t offset(const Weight* numbers) const {
        __m512i sums = _mm512_setzero_si512();
        for (int64_t i = 0; i < inputs; i += 64) sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(-128), _mm512_loadu_si512(numbers + i));
        return -_mm512_reduce_add_epi32(sums);
    }

    void multiply(const Weight* w, const Weight* high, const Weight* low, int64_t count, typename Tile::Sum (&sums)[4][TILE_ROWS][LANES]) {
        configure(count);
        const int64_t stride = inputs * static_cast<int64_t>(sizeof(Weight));
        asm volatile("" ::: "memory");  // the compiler does not know that tiles read and write memory
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t i = 0; i < inputs; i += DEPTH, w += PANEL * DEPTH) {
            const char* const ahead = reinterpret_cast<const char*>(w) + FAR_AHEAD;
            ask_far(ahead, PANEL * DEPTH * sizeof(Weight) / 2);
            _tile_stream_loadd(6, w, 64);  // weights are read once and need not stay in the caches
            _tile_loadd(4, high + i, stride);
            _tile_loadd(5, low + i, stride);
            Tile::with_first();
            ask_far(ahead + PANEL * DEPTH * sizeof(Weight) / 2, PANEL * DEPTH * sizeof(Weight) / 2);
            _tile_stream_loadd(7, w + LANES * DEPTH, 64);
            Tile::with_second();
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
    int32_t offsets[2 * (Tile::FEW ? Tile::FEW : 1)] = {};  // of each row's high plane, then of each row's low plane
};

}  // namespace
