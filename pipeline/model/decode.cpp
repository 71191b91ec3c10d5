// decode: one decode step of the decoder stack on a CPU with AVX-512, all layers in one parallel region.
//
// In:    the packed weights (pipeline/model/native.py packs them), the KV cache, the rows to advance
// Out:   each row's state after the final norm; its keys and values in the cache
// Owns:  nothing: every buffer comes from the caller
// Never: allocation, any sum across threads or across rows
//
// A row's numbers are one fixed chain of operations, whatever the rows beside it and the number of threads: threads
// share out outputs, never the terms of a sum, and a block of rows runs the chain of each row side by side.
// Weights and cache are read in their own type; every product and every sum is float32.

#include <immintrin.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd.h"
#include "team.h"

namespace {

constexpr int BLOCK = 8;     // rows computed together: 16 sums, and what they are multiplied with, fill the registers
constexpr int AHEAD = 2048;  // bytes of weights asked for in advance

struct bf16 {
    uint16_t bits;
};

// `Vectors` of one load: the panel's weights for DEPTH inputs.
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
inline void panel_sums(const W* w, const float* x, int64_t inputs, __m512 (&acc)[M][2]) {
    constexpr int DEPTH = Loader<W>::DEPTH;
    for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < inputs; i += DEPTH) {
        for (unsigned line = 0; line < DEPTH * PANEL * sizeof(W); line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(w) + AHEAD + line, _MM_HINT_T0);
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

// A packed product. `scales` is null unless the weights are int8: then each output has one.
struct Product {
    const void* weights;
    const float* scales;
};

// For rows [0, rows) and panels [0, panels), shared out: done(row, panel, sums) for each.
template <class W, class Done>
void product(Team& team, const Product& p, const float* x, int64_t rows, int64_t inputs, int64_t panels, Done done) {
    const auto block = [&]<int M>(const W* w, int64_t panel, int64_t first) {
        __m512 acc[M][2];
        panel_sums<W, M>(w, x + first * inputs, inputs, acc);
        for (int m = 0; m < M; m++) {
            if (p.scales)
                for (int half = 0; half < 2; half++)
                    acc[m][half] = _mm512_mul_ps(acc[m][half], _mm512_loadu_ps(p.scales + panel * PANEL + half * LANES));
            done(first + m, panel, acc[m]);
        }
    };
    team.share(panels, [&](int64_t panel) {
        const W* w = static_cast<const W*>(p.weights) + panel * PANEL * inputs;
        int64_t first = 0;
        for (; first + BLOCK <= rows; first += BLOCK) block.template operator()<BLOCK>(w, panel, first);
        switch (rows - first) {
            case 1: block.template operator()<1>(w, panel, first); break;
            case 2: block.template operator()<2>(w, panel, first); break;
            case 3: block.template operator()<3>(w, panel, first); break;
            case 4: block.template operator()<4>(w, panel, first); break;
            case 5: block.template operator()<5>(w, panel, first); break;
            case 6: block.template operator()<6>(w, panel, first); break;
            case 7: block.template operator()<7>(w, panel, first); break;
        }
    });
}

// RMSNorm of rows (rows, width) into `out`. Every thread computes all of it for itself: cheaper than meeting once more.
void rms_norm(const float* x, const float* weight, int64_t rows, int64_t width, double eps, float* out) {
    for (int64_t row = 0; row < rows; row++, x += width, out += width) {
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += LANES) {
            const __m512 v = _mm512_loadu_ps(x + i);
            squares = _mm512_fmadd_ps(v, v, squares);
        }
        const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(width);
        const __m512 factor = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean + static_cast<float>(eps)));
        for (int64_t i = 0; i < width; i += LANES)
            _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor), _mm512_loadu_ps(weight + i)));
    }
}

// One cache row of 32 numbers as two registers. In bfloat16 they are the even and the odd numbers, in float32 the first
// and the last 16: `arrange` brings 32 plain floats into the same order, `restore` takes them out of it.
template <class T>
struct Cached;

template <>
struct Cached<float> {
    static void load(const float* from, __m512& a, __m512& b) {
        a = _mm512_loadu_ps(from);
        b = _mm512_loadu_ps(from + LANES);
    }
    static void store(float* to, const float* from) {
        for (int i = 0; i < PANEL; i++) to[i] = from[i];
    }
    static int place(int i) { return i; }
};

template <>
struct Cached<bf16> {
    static void load(const bf16* from, __m512& a, __m512& b) {
        const __m512i pairs = _mm512_loadu_si512(from);
        a = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        b = _mm512_castsi512_ps(_mm512_and_epi32(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    }
    static void store(bf16* to, const float* from) {  // rounds to nearest even; NaN stays NaN
        for (int i = 0; i < PANEL; i++) {
            uint32_t bits;
            __builtin_memcpy(&bits, from + i, 4);
            to[i].bits = from[i] != from[i] ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        }
    }
    static int place(int i) { return i % 2 * LANES + i / 2; }
};

// Attention of one head of one row over positions [0, position]: rotates query and key, writes key and value.
// PARTS: 32-number parts of a head.
template <class T, int PARTS>
void attend(const float* query, const float* key, const float* value, const float* cos, const float* sin, T* keys, T* values,
            int64_t position, float* scores, float* out) {
    constexpr int DIM = PARTS * PANEL;
    float rotated_query[DIM], rotated_key[DIM];
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(DIM));
    for (int i = 0; i < DIM; i++) {
        const int partner = (i + DIM / 2) % DIM;
        const int place = i / PANEL * PANEL + Cached<T>::place(i % PANEL);
        rotated_query[place] = (query[i] * cos[i] + query[partner] * sin[i]) * scale;
        rotated_key[i] = key[i] * cos[i] + key[partner] * sin[i];
    }
    for (int part = 0; part < PARTS; part++) {
        Cached<T>::store(keys + position * DIM + part * PANEL, rotated_key + part * PANEL);
        Cached<T>::store(values + position * DIM + part * PANEL, value + part * PANEL);
    }
    __m512 q[PARTS][2];
    for (int part = 0; part < PARTS; part++)
        for (int half = 0; half < 2; half++) q[part][half] = _mm512_loadu_ps(rotated_query + part * PANEL + half * LANES);

    // 1) scores and their maximum
    const int64_t count = position + 1;
    float highest = -INFINITY;
    for (int64_t p = 0; p < count; p++) {
        __m512 sum = _mm512_setzero_ps();
        for (int part = 0; part < PARTS; part++) {
            __m512 a, b;
            Cached<T>::load(keys + p * DIM + part * PANEL, a, b);
            sum = _mm512_fmadd_ps(q[part][0], a, sum);
            sum = _mm512_fmadd_ps(q[part][1], b, sum);
        }
        scores[p] = _mm512_reduce_add_ps(sum);
        highest = scores[p] > highest ? scores[p] : highest;
    }
    // 2) exponentials and their sum; the last register is filled up with scores of probability 0
    const int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t p = count; p < padded; p++) scores[p] = -INFINITY;
    __m512 total = _mm512_setzero_ps();
    for (int64_t p = 0; p < padded; p += LANES) {
        const __m512 score = _mm512_loadu_ps(scores + p);
        __m512 e = exponential(_mm512_sub_ps(score, _mm512_set1_ps(highest)));
        if (p + LANES > count) e = _mm512_maskz_mov_ps(static_cast<__mmask16>((1u << (count - p)) - 1), e);
        _mm512_storeu_ps(scores + p, e);
        total = _mm512_add_ps(total, e);
    }
    // 3) the weighted values
    __m512 acc[PARTS][2];
    for (int part = 0; part < PARTS; part++) acc[part][0] = acc[part][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < count; p++) {
        const __m512 weight = _mm512_set1_ps(scores[p]);
        for (int part = 0; part < PARTS; part++) {
            __m512 a, b;
            Cached<T>::load(values + p * DIM + part * PANEL, a, b);
            acc[part][0] = _mm512_fmadd_ps(weight, a, acc[part][0]);
            acc[part][1] = _mm512_fmadd_ps(weight, b, acc[part][1]);
        }
    }
    const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    float mixed[DIM];
    for (int part = 0; part < PARTS; part++)
        for (int half = 0; half < 2; half++)
            _mm512_storeu_ps(mixed + part * PANEL + half * LANES, _mm512_mul_ps(acc[part][half], share));
    for (int i = 0; i < DIM; i++) out[i] = mixed[i / PANEL * PANEL + Cached<T>::place(i % PANEL)];
}

// The layout of these three is repeated in pipeline/model/native.py.
struct Layer {
    const float* attention_norm;
    Product qkv, attention_out;
    const float* mlp_norm;
    Product gate_up, down;  // gate_up: panels of 16 gates and the 16 values they belong to
};

struct Model {
    int64_t weight_bits, layers, width, heads, head_dim, mlp_width, positions;
    double eps;
    const float *final_norm, *cos, *sin;  // (width,), (positions, head_dim) twice; sin carries the sign of the rotation
    const Layer* stack;
    // Scratch for as many rows as there are slots, a part each for the threads where it says so.
    float *x, *qkv, *seen, *hidden;  // (rows, width), (rows, 3 width), (rows, width), (rows, mlp_width)
    float *normed, *scores;          // threads x (rows, width), threads x (positions + 16)
    Taken* counts;                   // 2 + (5 layers + 2) threads: up to 5 phases a layer and 2 more
};

struct Step {
    int64_t count;             // rows to advance
    const int64_t* rows;       // (count,): the slot of each
    const int64_t* positions;  // (slots,): where each slot writes
    const float* in;           // (slots, width)
    float* out;                // (slots, width): the given rows are written, the others left alone
    void *keys, *values;       // (layers, slots, heads, positions, head_dim)
    int64_t layer_stride;      // numbers from one layer's keys to the next one's
    int64_t threads;
};

// Weights of type W, a cache of type T, heads of PARTS * 32 numbers. Every thread runs all of it.
template <class W, class T, int PARTS>
void decode_step(const Model& model, const Step& step) {
    constexpr int64_t DIM = PARTS * PANEL;
    const int64_t width = model.width, heads = model.heads, mlp = model.mlp_width, count = step.count;
    float* const x = model.x;
    Team team(model.counts, model.counts + 2);
    float* const normed = model.normed + team.me * count * width;
    float* const scores = model.scores + team.me * (model.positions + LANES);
    const auto add_to_x = [&](int64_t row, int64_t panel, const __m512(&sums)[2]) {
        float* at = x + row * width + panel * PANEL;
        _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sums[0]));
        _mm512_storeu_ps(at + LANES, _mm512_add_ps(_mm512_loadu_ps(at + LANES), sums[1]));
    };
    team.share(count, [&](int64_t row) {
        std::memcpy(x + row * width, step.in + step.rows[row] * width, width * sizeof(float));
    });

    for (int64_t index = 0; index < model.layers; index++) {
        const Layer& layer = model.stack[index];
        T* const keys = static_cast<T*>(step.keys) + index * step.layer_stride;
        T* const values = static_cast<T*>(step.values) + index * step.layer_stride;
        rms_norm(x, layer.attention_norm, count, width, model.eps, normed);
        product<W>(team, layer.qkv, normed, count, width, 3 * width / PANEL, [&](int64_t row, int64_t panel, const __m512(&sums)[2]) {
            float* at = model.qkv + row * 3 * width + panel * PANEL;
            _mm512_storeu_ps(at, sums[0]);
            _mm512_storeu_ps(at + LANES, sums[1]);
        });
        team.share(heads * count, [&](int64_t task) {  // head by head: each thread gets long rows and short ones
            const int64_t head = task / count, row = task % count, slot = step.rows[row], position = step.positions[slot];
            const int64_t place = (slot * heads + head) * model.positions * DIM;
            const float* query = model.qkv + row * 3 * width + head * DIM;
            attend<T, PARTS>(query, query + width, query + 2 * width, model.cos + position * DIM, model.sin + position * DIM,
                             keys + place, values + place, position, scores, model.seen + row * width + head * DIM);
        });
        product<W>(team, layer.attention_out, model.seen, count, width, width / PANEL, add_to_x);
        rms_norm(x, layer.mlp_norm, count, width, model.eps, normed);
        product<W>(team, layer.gate_up, normed, count, width, 2 * mlp / PANEL, [&](int64_t row, int64_t panel, const __m512(&sums)[2]) {
            const __m512 decay = exponential(_mm512_sub_ps(_mm512_setzero_ps(), sums[0]));
            const __m512 gate = _mm512_div_ps(sums[0], _mm512_add_ps(_mm512_set1_ps(1.0f), decay));  // SiLU
            _mm512_storeu_ps(model.hidden + row * mlp + panel * LANES, _mm512_mul_ps(gate, sums[1]));
        });
        product<W>(team, layer.down, model.hidden, count, mlp, width / PANEL, add_to_x);
    }
    team.share(count, [&](int64_t row) {
        rms_norm(x + row * width, model.final_norm, 1, width, model.eps, step.out + step.rows[row] * width);
    });
}

template <class W, class T>
void run(const Model& model, const Step& step) {
    std::memset(static_cast<void*>(model.counts), 0, sizeof(Taken) * (2 + (5 * model.layers + 2) * step.threads));
#pragma omp parallel num_threads(step.threads)
    {
        if (model.head_dim == PANEL) decode_step<W, T, 1>(model, step);
        if (model.head_dim == 2 * PANEL) decode_step<W, T, 2>(model, step);
    }
}

}  // namespace

extern "C" void decode(const Model* model, const Step* step) {
    if (model->weight_bits == 32) run<float, float>(*model, *step);
    if (model->weight_bits == 16) run<bf16, bf16>(*model, *step);
    if (model->weight_bits == 8) run<int8_t, bf16>(*model, *step);
}
