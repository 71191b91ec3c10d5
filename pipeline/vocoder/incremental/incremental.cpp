// incremental: the vocoder on a CPU. It runs the next frames of an utterance through every layer, and each layer
// keeps the frames that its next outputs need. Every frame passes every layer once, however an utterance is cut into calls.
//
// In:    packed weights (by pipeline/vocoder/incremental/), the next frames, the state of the layers
// Out:   the samples that no later frame can change; the new state of the layers
// Owns:  nothing: every buffer comes from the caller
// Never: allocation, any sum across threads or across frames
//
// A frame's numbers are one fixed chain of operations. It does not depend on neighbouring frames, on the position among them
// or on the number of threads: threads share outputs, never the terms of a sum, and a block runs the chains of its frames in
// parallel.
//
// What a layer reads for its outputs o, o + 1, ...: `before` and `after` are its reach, i the number of frames it has read.
//
//    o - before            o                   i                   i + new
//    |------- state, zeros before frame 0 -----|------- new -------|. . zeros, after the end of the utterance
//    '---- before ---------|---- after --------'


#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "functions.h"
#include "panel.h"
#include "simd.h"
#include "team.h"
#ifdef __AMX_TILE__
#include "tiles.h"
#endif

namespace {

constexpr int BLOCK = REGISTERS == 1 ? 12 : 6;  // frames computed together: their sums and factors fill the registers
constexpr int PASS = 96;      // frames that pass the layers together; they fit into the second-level cache
constexpr int PORTION = 1024; // numbers split at once
constexpr int AHEAD = 1024;   // bytes of weights prefetched
constexpr int PHASES = 6;     // most barriers per stage
constexpr int64_t HOP = 256, PIECE = 4 * HOP;
constexpr int SKEW = PANEL;   // numbers between rows: rows of a power of two would compete for the same cache sets

// (outputs, inputs) in panels; outputs is a multiple of 16.
struct Product {
    const void* weights;
    const float* bias;
    int64_t inputs, outputs;
    int64_t in_tiles;  // the weights are packed for AMX, and inputs is a multiple of 32
};

struct Norm {
    const float *weight, *bias;
};

enum Kind : int64_t {
    CONVOLUTION,       // over neighbouring frames
    CONVOLUTION_GELU,  // and a GELU
    CONVOLUTION_NORM,  // and a LayerNorm
    CONVNEXT,          // a block
    SPECTRUM,          // LayerNorm, magnitudes and phases, inverse transform: frames to pieces of 1024 samples
    OVERLAP,           // pieces, a hop apart, added up to samples
};

// The layout of these four is repeated in pipeline/vocoder/incremental: vocoder_packing.py and incremental_network.py.
struct Stage {
    int64_t kind, channels, before, after;  // channels: numbers per input frame
    int64_t kernel, dilation;               // of the depthwise convolution
    const float *taps, *taps_bias;          // (kernel, channels), (channels,)
    Norm norm;
    Product first, second;
};

struct Network {
    int64_t count, tiles;    // tiles: 1 if any product uses AMX
    const Stage* stages;
    double eps;
    const float* squares;    // (1024,): the window of the inverse transform, squared
    float* frames[2];        // input and output of a stage
    float *normed, *hidden;  // rows of the widest stage
    int64_t normed_stride, hidden_stride;
    uint16_t* planes[2];     // the inputs of a product with AMX, in the same layout, and space for 16 more rows
    Count* counts;           // PHASES * (count + 1) * (threads + 1)
};

struct Call {
    int64_t seen, count;  // frames of the utterance before this call, and in this call
    int64_t ended;        // the utterance ends with this call
    const float* frames;  // (count, channels of the first stage)
    float* memory;        // (before + after, channels) of each stage, one after another
    float* samples;       // space for all samples of this call
    int64_t threads;
};

#ifdef __AMX_TILE__
// The product below with AMX. Rows past the last one are computed from arbitrary memory and discarded.
template <class Done>
void product_in_tiles(Team& team, uint16_t* const (&planes)[2], const Product& p, const float* x, int64_t stride, int64_t rows, Done done) {
    if (rows == 0) return;
    const int64_t numbers = (rows - 1) * stride + p.inputs;
    team.share((numbers + PORTION - 1) / PORTION, [&](int64_t portion) {
        for (int64_t i = portion * PORTION; i < std::min(numbers, (portion + 1) * PORTION); i += LANES) {
            __m256i parts[2];
            split(load(x + i).part[0], parts[0], parts[1]);
            for (int part = 0; part < 2; part++) _mm256_storeu_si256(reinterpret_cast<__m256i*>(planes[part] + i), parts[part]);
        }
    });
    const auto block = [&]<int BLOCKS>(int64_t panel, int64_t first) {
        alignas(64) float sums[BLOCKS][2][TILE_ROWS][LANES];
        const uint16_t* const w = static_cast<const uint16_t*>(p.weights) + panel * PANEL * p.inputs * 2;
        Tiles::multiply<BLOCKS>(w, planes[0] + first * stride, planes[1] + first * stride, stride, p.inputs, sums);
        const Sums bias = {load(p.bias + panel * PANEL), load(p.bias + panel * PANEL + LANES)};
        for (int64_t row = 0; row < std::min<int64_t>(BLOCKS * TILE_ROWS, rows - first); row++) {
            const auto& own = sums[row / TILE_ROWS];
            done(first + row, panel * PANEL, {bias[0] + load(own[0][row % TILE_ROWS]), bias[1] + load(own[1][row % TILE_ROWS])});
        }
    };
    team.share((p.outputs + PANEL - 1) / PANEL, [&](int64_t panel) {
        int64_t first = 0;
        for (; rows - first > TILE_ROWS; first += 2 * TILE_ROWS) block.template operator()<2>(panel, first);
        if (rows - first > 0) block.template operator()<1>(panel, first);
    });
}
#endif

// The sums of one panel for M rows, of which the last `M - rows` repeat the last row. Not inlined: among other code they would not
// stay in registers.
template <int M>
[[gnu::noinline]] void panel_sums(const float* w, const float* bias, const float* x, int64_t stride, int64_t rows, int64_t inputs,
                                  Sums (&acc)[M]) {
    const float* row[M];
#pragma GCC unroll 12
    for (int m = 0; m < M; m++) {
        row[m] = x + std::min<int64_t>(m, rows - 1) * stride;
        acc[m][0] = load(bias);
        acc[m][1] = load(bias + LANES);
    }
    add_panel<float, AHEAD>(w, inputs, [&](int m, int64_t i) { return row[m][i]; }, acc);
}

// Computes rows [0, rows), `stride` numbers apart in x, for all panels, shared by the team: done(row, first output, sums).
template <class Done>
void product(Team& team, [[maybe_unused]] uint16_t* const (&planes)[2], const Product& p, const float* x, int64_t stride, int64_t rows, Done done) {
#ifdef __AMX_TILE__
    if (p.in_tiles) return product_in_tiles(team, planes, p, x, stride, rows, done);
#endif
    const float* const weights = static_cast<const float*>(p.weights);
    const auto block = [&]<int M>(int64_t panel, int64_t first) {
        const int64_t count = std::min<int64_t>(M, rows - first);
        Sums acc[M];
        panel_sums(weights + panel * PANEL * p.inputs, p.bias + panel * PANEL, x + first * stride, stride, count, p.inputs, acc);
#pragma GCC unroll 12
        for (int m = 0; m < M; m++)
            if (m < count) done(first + m, panel * PANEL, acc[m]);
    };
    team.share((p.outputs + PANEL - 1) / PANEL, [&](int64_t panel) {
        int64_t first = 0;
        for (; rows - first > 2 * BLOCK / 3; first += BLOCK) block.template operator()<BLOCK>(panel, first);
        if (rows - first > BLOCK / 3)
            block.template operator()<2 * BLOCK / 3>(panel, first);
        else if (rows - first > 0)
            block.template operator()<BLOCK / 3>(panel, first);
    });
}

// Stores the sums, or their first half if there is space for that only.
inline void store(float* at, const Sums& sums, int64_t room) {
    ::store(at, sums[0]);
    if (room >= PANEL) ::store(at + LANES, sums[1]);
}

void layer_norm(const float* x, const Norm& norm, int64_t channels, double eps, float* out) {
    Floats total = zeros();
    for (int64_t i = 0; i < channels; i += LANES) total = total + load(x + i);
    const Floats mean = all(sum(total) / static_cast<float>(channels));
    Floats squares = zeros();
    for (int64_t i = 0; i < channels; i += LANES) {
        const Floats v = load(x + i) - mean;
        squares = fma(v, v, squares);
    }
    const float variance = sum(squares) / static_cast<float>(channels);
    const Floats factor = all(1.0f / __builtin_sqrtf(variance + static_cast<float>(eps)));
    for (int64_t i = 0; i < channels; i += LANES)
        store(out + i, fma((load(x + i) - mean) * factor, load(norm.weight + i), load(norm.bias + i)));
}

// x: the first frame that the output depends on.
void depthwise(const Stage& stage, const float* x, float* out) {
    for (int64_t i = 0; i < stage.channels; i += LANES) {
        Floats sum = load(stage.taps_bias + i);
        for (int64_t tap = 0; tap < stage.kernel; tap++)
            sum = fma(load(x + tap * stage.dilation * stage.channels + i), load(stage.taps + tap * stage.channels + i), sum);
        store(out + i, sum);
    }
}

// Hop t of the samples, from four quarters: 0 of piece t + 2, 1 of t + 1, 2 of t, 3 of t - 1; pieces may not exist.
// x: piece t - 1.
void overlap(const float* x, const float* squares, bool exists[4], float* out) {
    for (int64_t i = 0; i < HOP; i += LANES) {
        Floats sum = zeros(), envelope = zeros();
        for (int quarter = 0; quarter < 4; quarter++) {
            const int piece = 3 - quarter;
            if (!exists[piece]) continue;
            sum = sum + load(x + piece * PIECE + quarter * HOP + i);
            envelope = envelope + load(squares + quarter * HOP + i);
        }
        store(out + i, sum / max(envelope, all(1e-11f)));
    }
}

// Runs up to PASS frames through all stages; every thread calls it. Returns the end of the samples.
float* pass(Team& team, const Network& network, const Call& call, int64_t seen, const float* frames, int64_t count, bool ended, float* samples) {
#ifdef __AMX_TILE__
    std::optional<Tiles> tiles;
    if (network.tiles) tiles.emplace();
#endif
    float *from = network.frames[0], *to = network.frames[1], *memory = call.memory;
    const auto remembered = [](const Stage& stage, int64_t had) { return stage.before + std::min(had, stage.after); };
    const auto blocks = [&](int64_t rows, auto task) {
        team.share((rows + BLOCK - 1) / BLOCK, [&](int64_t block) {
            for (int64_t row = block * BLOCK; row < std::min(rows, (block + 1) * BLOCK); row++) task(row);
        });
    };

    team.share(1, [&](int64_t) {
        const Stage& first = network.stages[0];
        const int64_t held = remembered(first, seen) * first.channels;
        std::memcpy(from, memory, held * sizeof(float));
        std::memcpy(from + held, frames, count * first.channels * sizeof(float));
    });
    for (const Stage* at = network.stages; at < network.stages + network.count; at++) {
        const Stage& stage = *at;
        const bool is_last = stage.kind == OVERLAP;
        const int64_t channels = stage.channels, size = (stage.before + stage.after) * channels;
        const int64_t held = remembered(stage, seen), known = seen + count;
        const int64_t done = std::max<int64_t>(0, seen - stage.after);
        const int64_t now = ended ? std::max(done, known - is_last) : std::max<int64_t>(0, known - stage.after);
        const int64_t rows = now - done, next_channels = is_last ? 0 : at[1].channels;
        float* const out = is_last ? samples : to + remembered(at[1], done) * next_channels;

        team.share(2, [&](int64_t task) {
            if (task == 0 && !is_last) std::memcpy(to, memory + size, remembered(at[1], done) * next_channels * sizeof(float));
            if (task == 1 && ended) std::memset(from + (held + count) * channels, 0, stage.after * channels * sizeof(float));
            if (task == 1 && !ended) {
                const int64_t kept = remembered(stage, known);
                std::memcpy(memory, from + (held + count - kept) * channels, kept * channels * sizeof(float));
            }
        });
        const auto plainly = [&](int64_t row, int64_t output, const Sums& sums) {
            store(out + row * next_channels + output, sums, next_channels - output);
        };
        switch (stage.kind) {
            case CONVOLUTION: product(team, network.planes, stage.first, from, channels, rows, plainly); break;
            case CONVOLUTION_GELU:
                product(team, network.planes, stage.first, from, channels, rows, [&](int64_t row, int64_t output, const Sums& sums) {
                    plainly(row, output, {gelu(sums[0]), gelu(sums[1])});
                });
                break;
            case CONVOLUTION_NORM:
                product(team, network.planes, stage.first, from, channels, rows, plainly);
                blocks(rows, [&](int64_t row) {
                    float* own = out + row * next_channels;
                    layer_norm(own, stage.norm, next_channels, network.eps, own);
                });
                break;
            case CONVNEXT:
                blocks(rows, [&](int64_t row) {
                    float* own = network.normed + row * network.normed_stride;
                    depthwise(stage, from + row * channels, own);
                    layer_norm(own, stage.norm, channels, network.eps, own);
                });
                product(team, network.planes, stage.first, network.normed, network.normed_stride, rows,
                        [&](int64_t row, int64_t output, const Sums& sums) {
                            store(network.hidden + row * network.hidden_stride + output, {gelu(sums[0]), gelu(sums[1])},
                                  stage.first.outputs - output);
                        });
                product(team, network.planes, stage.second, network.hidden, network.hidden_stride, rows,
                        [&](int64_t row, int64_t output, const Sums& sums) {
                            const float* residual = from + (stage.before + row) * channels + output;
                            const bool both = channels - output >= PANEL;
                            plainly(row, output, {load(residual) + sums[0], both ? load(residual + LANES) + sums[1] : sums[1]});
                        });
                break;
            case SPECTRUM:
                blocks(rows, [&](int64_t row) {
                    layer_norm(from + row * channels, stage.norm, channels, network.eps, network.normed + row * network.normed_stride);
                });
                // A panel holds 16 logarithms of magnitudes and their 16 phases.
                product(team, network.planes, stage.first, network.normed, network.normed_stride, rows,
                        [&](int64_t row, int64_t output, const Sums& sums) {
                            // In this order NaN stays NaN.
                            const Floats magnitude = min(all(100.0f), exponential(sums[0]));
                            Floats sine, cosine;
                            sine_cosine(sums[1], sine, cosine);
                            store(network.hidden + row * network.hidden_stride + output,
                                  {magnitude * cosine, magnitude * sine}, PANEL);
                        });
                product(team, network.planes, stage.second, network.hidden, network.hidden_stride, rows, plainly);
                break;
            case OVERLAP:
                blocks(rows, [&](int64_t row) {
                    bool exists[4];
                    for (int64_t i = 0; i < 4; i++) {
                        const int64_t piece = done + row - stage.before + i;
                        exists[i] = piece >= 0 && piece < known;
                    }
                    overlap(from + row * channels, network.squares, exists, out + row * HOP);
                });
                samples += rows * HOP;
                break;
        }
        if (rows == 0 && !ended) break;
        memory += size;
        seen = done;
        count = rows;
        std::swap(from, to);
    }
    return samples;
}

}  // namespace

// Returns the number of samples written.
extern "C" int64_t decode(const Network* network, const Call* call) {
    float* end = call->samples;
    int64_t from = 0;
    do {
        const int64_t count = std::min<int64_t>(PASS, call->count - from);
        const bool ended = call->ended && from + count == call->count;
        std::memset(static_cast<void*>(network->counts), 0, sizeof(Count) * PHASES * (network->count + 1) * (call->threads + 1));
        float* reached = end;
        Crew::run(call->threads, [&](int64_t me, int64_t size) {
            Team team(me, size, network->counts);
            float* const own = pass(team, *network, *call, call->seen + from, call->frames + from * network->stages[0].channels, count, ended, end);
            if (me == 0) reached = own;
        });
        end = reached;
        from += count;
    } while (from < call->count);
    return end - call->samples;
}
