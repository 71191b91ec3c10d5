// tiles: float32 products with AMX. Every number is split into two bfloat16 numbers: the nearest, and the remainder.
//
// In:    rows of inputs as two planes of bfloat16, packed weights (pipeline/native/memory.py packs them)
// Out:   sums, 32 per row and panel
// Owns:  a thread's tile registers during the lifetime of a Tiles
// Never: any sum across threads or across rows
//
// Weights are not prefetched: the processor does it, and more would compete with the loads of tiles. Rows of inputs that begin at
// cache lines are loaded sooner.
//
// Of the four products of two such pairs three are summed; the fourth is below the last bit of float32. A row's sums are one
// fixed chain of operations that does not depend on other rows.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd.h"

namespace {

constexpr int TILE_ROWS = 16;      // rows of one tile
constexpr int TILE_NUMBERS = 512;  // numbers of a tile of weights: of 32 inputs and 16 outputs
constexpr int TILE_DEPTH = 32;     // inputs of a tile

// Splits 16 numbers into two bfloat16 numbers each: the nearest, and the nearest to the remainder.
inline void split(__m512 x, __m256i& high, __m256i& low) {
    const __m512i nearest = rounded_bits(x);
    high = _mm512_cvtepi32_epi16(nearest);
    low = _mm512_cvtepi32_epi16(rounded_bits(_mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(nearest, 16)))));
}

// Tiles 0 to 5, sums and inputs, have `rows` rows of 64 bytes. 6 and 7, weights, have all 16.
inline void configure_tiles(int64_t rows) {
    struct {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; tile++) {
        config.bytes[tile] = 64;
        config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : TILE_ROWS);
    }
    asm volatile("" ::: "memory");
    _tile_loadconfig(&config);
}

// Tiles 0 to 3: sums, 16 rows and 16 outputs each. 4, 5: inputs. 6, 7: the two halves of a panel's weights.
class Tiles {
public:
    Tiles() { configure_tiles(TILE_ROWS); }
    Tiles(const Tiles&) = delete;
    ~Tiles() { _tile_release(); }

    // One panel for 16 or 32 rows whose planes begin `stride` numbers apart; sums[block of rows][half][row][output].
    // `inputs` is a multiple of 32; for every 32 of them `w` holds the panel's halves: nearest numbers, then remainders.
    template <int BLOCKS>
    static void multiply(const uint16_t* w, const uint16_t* high, const uint16_t* low, int64_t stride, int64_t inputs,
                         float (&sums)[BLOCKS][2][TILE_ROWS][LANES]) {
        const int64_t row = 2 * stride, block = TILE_ROWS * stride;
        asm volatile("" ::: "memory");  // the compiler does not know that tiles read and write memory
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (BLOCKS > 1) {
            _tile_zero(2);
            _tile_zero(3);
        }
        const auto with_weights = [&](const uint16_t* x) {
            _tile_loadd(4, x, row);
            if constexpr (BLOCKS > 1) _tile_loadd(5, x + block, row);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (BLOCKS > 1) {
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        };
        for (int64_t i = 0; i < inputs; i += TILE_DEPTH, w += 4 * TILE_NUMBERS) {
            _tile_loadd(6, w, 64);
            _tile_loadd(7, w + TILE_NUMBERS, 64);
            with_weights(high + i);
            with_weights(low + i);
            _tile_loadd(6, w + 2 * TILE_NUMBERS, 64);
            _tile_loadd(7, w + 3 * TILE_NUMBERS, 64);
            with_weights(high + i);
        }
        _tile_stored(0, sums[0][0], 64);
        _tile_stored(1, sums[0][1], 64);
        if constexpr (BLOCKS > 1) {
            _tile_stored(2, sums[1][0], 64);
            _tile_stored(3, sums[1][1], 64);
        }
        asm volatile("" ::: "memory");
    }
};

}  // namespace
