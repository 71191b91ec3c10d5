// decode: a whole step of the acoustic model on a CPU, draws and all layers in one parallel region.
//
// In:    the packed weights (pipeline/model/cpu/packing.py packs them), the KV cache, each slot's settings and progress
// Out:   tokens; each row's state after the final norm; its keys and values in the cache
// Owns:  nothing: every buffer comes from the caller
// Never: allocation, any sum across threads or across rows
//
// A row's numbers are one fixed chain of operations, whatever the rows beside it and the number of threads: threads
// share out outputs, never the terms of a sum. Positions of one prompt are rows like any others: keys and values of all
// rows are written, and rounded, before the first one looks at them.


#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "draw.h"
#include "product.h"
#include "product_groups.h"
#ifdef __AMX_TILE__
#include "product_tiles.h"
#endif
#include "round_groups.h"
#include "simd.h"
#include "team.h"

namespace {

constexpr int GROUP = 4;            // positions whose scores are summed up side by side
constexpr int CACHE_AHEAD = 4096;   // bytes of keys and values prefetched: the processor's own prefetching ends with a page
constexpr float LARGEST = 127;      // of int8, as in pipeline/model/quantise.py
constexpr float LARGEST_16 = 32767;

// RMSNorm of rows (rows, width) into `out`. Every thread computes all of it for itself: cheaper than meeting once more.
void rms_norm(const float* x, const float* weight, int64_t rows, int64_t width, double eps, float* out) {
    for (int64_t row = 0; row < rows; row++, x += width, out += width) {
        Floats squares = zeros();
        for (int64_t i = 0; i < width; i += LANES) {
            const Floats v = load(x + i);
            squares = fma(v, v, squares);
        }
        const float mean = sum(squares) / static_cast<float>(width);
        const Floats factor = all(1.0f / __builtin_sqrtf(mean + static_cast<float>(eps)));
        for (int64_t i = 0; i < width; i += LANES) store(out + i, load(x + i) * factor * load(weight + i));
    }
}

// One head's keys, or values, of one slot. `scales` is null unless the numbers are int8: then each position has one.
struct Kept {
    char* numbers;  // (positions, head_dim)
    float* scales;  // (positions,)
};

// 32 numbers of a cache as two vectors. In bfloat16 they are the even and the odd numbers, else the first and the last 16:
// `place` says where number i is to be found.
template <class T>
struct Cached;

template <>
struct Cached<float> {
    static void load(const float* from, Floats& a, Floats& b) {
        a = ::load(from);
        b = ::load(from + LANES);
    }
    static constexpr int place(int i) { return i; }
    static void write(const float* numbers, int64_t dim, const Kept& to, int64_t position) {
        std::memcpy(to.numbers + position * dim * sizeof(float), numbers, dim * sizeof(float));
    }
};

template <>
struct Cached<bf16> {
    static void load(const bf16* from, Floats& a, Floats& b) { load_pairs(&from->bits, a, b); }
    static constexpr int place(int i) { return i % 2 * LANES + i / 2; }
    static void write(const float* numbers, int64_t dim, const Kept& to, int64_t position) {
        bf16* const at = reinterpret_cast<bf16*>(to.numbers) + position * dim;
        for (int64_t i = 0; i < dim; i += LANES) store_rounded(&at[i].bits, ::load(numbers + i));
    }
};

template <>
struct Cached<int8_t> {
    static void load(const int8_t* from, Floats& a, Floats& b) {
        a = load_bytes(from);
        b = load_bytes(from + LANES);
    }
    static constexpr int place(int i) { return i; }
    // As pipeline/model/quantise.py rounds, bit for bit; the scale of numbers that are not all finite is NaN.
    static void write(const float* numbers, int64_t dim, const Kept& to, int64_t position) {
        Floats highest = zeros();
        bool finite = true;
        for (int64_t i = 0; i < dim; i += LANES) {
            const Floats size = absolute(::load(numbers + i));
            highest = max(highest, size);
            finite &= every(less(size, all(INFINITY)));  // a maximum may lose a NaN
        }
        const float scale = std::max(largest(highest) / LARGEST, std::numeric_limits<float>::min());
        to.scales[position] = finite ? scale : NAN;
        int8_t* const at = reinterpret_cast<int8_t*>(to.numbers) + position * dim;
        for (int64_t i = 0; i < dim; i += LANES) store_bytes(at + i, integers(::load(numbers + i) / all(scale)));
    }
};

// A head's query, ready for products with keys: 16 sums for each. PARTS: 32-number parts of a head.
template <class T, int PARTS>
struct Query {
    explicit Query(const float* numbers) {
        float arranged[PARTS * PANEL];
        for (int i = 0; i < PARTS * PANEL; i++) arranged[i / PANEL * PANEL + Cached<T>::place(i % PANEL)] = numbers[i];
        for (int part = 0; part < PARTS; part++)
            for (int half = 0; half < 2; half++) q[part][half] = load(arranged + part * PANEL + half * LANES);
    }

    Floats products(const T* key) const {
        Floats sum = zeros();
        for (int part = 0; part < PARTS; part++) {
            Floats a, b;
            Cached<T>::load(key + part * PANEL, a, b);
            sum = fma(q[part][0], a, sum);
            sum = fma(q[part][1], b, sum);
        }
        return sum;
    }

    Floats q[PARTS][2];
};

// Beside int8 a query is integers of 16 bits with one scale: the sums are exact.
template <int PARTS>
struct Query<int8_t, PARTS> {
    explicit Query(const float* numbers) {
        const Rounding how = rounding(numbers, PARTS * PANEL, LARGEST_16);
        int16_t whole[PARTS * PANEL];
        for (int i = 0; i < PARTS * PANEL; i += LANES) store_shorts(whole + i, integers(load(numbers + i) * all(how.factor)));
        for (int part = 0; part < PARTS; part++)
            for (int r = 0; r < REGISTERS; r++) q[part][r] = load_shorts(whole + part * PANEL + r * SHORTS);
        scale = how.scale;
    }

    Integers products(const int8_t* key) const {
        Integers sum = {};
        for (int part = 0; part < PARTS; part++)
            for (int r = 0; r < REGISTERS; r++)
                sum.part[r] = multiply_pairs(widened(key + part * PANEL + r * SHORTS), q[part][r], sum.part[r]);
        return sum;
    }

    float scale;
    ShortRegister q[PARTS][REGISTERS];
};

// Attention of one head of one row over positions [0, position]. `next`: the keys that are looked at after these.
template <class T, int PARTS>
void attend(const float* query, const Kept& kept_keys, const Kept& kept_values, const char* next, int64_t position, float* scores, float* out) {
    constexpr int DIM = PARTS * PANEL;
    constexpr bool SCALED = std::is_same_v<T, int8_t>;
    constexpr int64_t ROW = DIM * sizeof(T);
    const T* const keys = reinterpret_cast<const T*>(kept_keys.numbers);
    const T* const values = reinterpret_cast<const T*>(kept_values.numbers);
    const Query<T, PARTS> q(query);

    // 1) scores; the last group is filled up with the last position again, the last register with nothing
    const int64_t count = position + 1, ahead = std::min<int64_t>(CACHE_AHEAD / ROW, count);
    const auto ask = [&](const void* now, const void* then, int64_t p) {  // one stream: keys, values, the next keys
        const int64_t at = p + ahead;
        ask_for(static_cast<const char*>(at < count ? now : then) + (at < count ? at : at - count) * ROW, GROUP * ROW);
    };
    for (int64_t p = 0; p < count; p += GROUP) {
        ask(keys, values, p);
        if constexpr (SCALED) {
            ask_for(kept_keys.scales + p, 1);
            ask_for(kept_values.scales + p, 1);
        }
        decltype(q.products(keys)) sums[GROUP];
#pragma GCC unroll 4
        for (int i = 0; i < GROUP; i++) sums[i] = q.products(keys + (p + i < count ? p + i : position) * DIM);
        store_four_sums(scores + p, sums);
    }
    Floats maxima = all(-INFINITY);
    for (int64_t p = 0; p < count; p += LANES) {
        Floats score = load(scores + p);
        if constexpr (SCALED) score = score * all(q.scale) * load_first(kept_keys.scales + p, count - p);
        score = choose(first_lanes(count - p), score, all(-INFINITY));
        store(scores + p, score);
        maxima = max(score, maxima);
    }
    const Floats highest = all(largest(maxima));
    // 2) exponentials and their sum
    Floats total = zeros();
    for (int64_t p = 0; p < count; p += LANES) {
        Floats e = choose(first_lanes(count - p), exponential(load(scores + p) - highest), zeros());
        total = total + e;
        if constexpr (SCALED) e = e * load_first(kept_values.scales + p, count - p);
        store(scores + p, e);
    }
    // 3) the weighted values
    Floats acc[PARTS][2];
    for (int part = 0; part < PARTS; part++) acc[part][0] = acc[part][1] = zeros();
    for (int64_t p = 0; p < count; p++) {
        if (p % GROUP == 0) ask(values, next, p);
        const Floats weight = all(scores[p]);
        for (int part = 0; part < PARTS; part++) {
            Floats a, b;
            Cached<T>::load(values + p * DIM + part * PANEL, a, b);
            acc[part][0] = fma(weight, a, acc[part][0]);
            acc[part][1] = fma(weight, b, acc[part][1]);
        }
    }
    const Floats share = all(1.0f / sum(total));
    float mixed[DIM];
    for (int part = 0; part < PARTS; part++)
        for (int half = 0; half < 2; half++) store(mixed + part * PANEL + half * LANES, acc[part][half] * share);
    for (int i = 0; i < DIM; i++) out[i] = mixed[i / PANEL * PANEL + Cached<T>::place(i % PANEL)];
}

// The type of a cache's numbers, and the operations on them.
struct Format {
    int64_t bytes;  // of a number
    void (*write)(const float* numbers, int64_t dim, const Kept& to, int64_t position);
    void (*attend)(const float* query, const Kept& keys, const Kept& values, const char* next, int64_t position, float* scores, float* out);
};

template <class T>
Format format_of(int64_t dim) {
    return {sizeof(T), Cached<T>::write, dim == PANEL ? attend<T, 1> : attend<T, 2>};
}

// The layout of all structs below is repeated in pipeline/model/cpu: packing.py, native.py and native_step.py.
struct Layer {
    const float* attention_norm;
    Product qkv, attention_out;  // qkv: panels of 16 numbers of a head and the 16 they are rotated with
    const float* mlp_norm;
    Product gate_up, down;  // gate_up: panels of 16 gates and the 16 values they belong to
};

// Of the products of all layers: product.h, product_tiles.h and product_groups.h.
enum ArithmeticKind : int64_t { PLAIN_FLOAT, PLAIN_BF16, PLAIN_INT8, PAIRS_INT8, TILE_BF16, TILE_INT8, GROUPS_INT4 };

struct Model {
    int64_t arithmetic, layers, width, heads, head_dim, mlp_width, positions, threads;
    int64_t rows;  // as many as the scratch holds
    int64_t taken_width;  // numbers of a row in `taken`
    double eps;
    const float *final_norm, *cos, *sin;  // (width,), (positions, head_dim) twice; sin carries the sign of the rotation
    const Layer* stack;
    float *x, *queries, *seen, *hidden;  // scratch: (rows, width) three times, (rows, mlp_width)
    // Scratch of each thread:
    float *normed, *scores;  // (rows, width), (positions + 16,)
    float* fresh;            // (rows, head_dim): keys, or values, on their way to the cache
    char* taken;             // rows x (mlp_width + 1) numbers of 4 bytes
    int64_t* places;         // (3, rows), and once more of all of them together
    Count* counts;           // of all of them together: (5 layers + 5) x (threads + 1)
};

// Float32 beside weights of float32, else bfloat16; int8 beside any, where there are scales.
struct Cache {
    char *keys, *values;               // (layers, slots, heads, positions, head_dim)
    float *key_scales, *value_scales;  // (layers, slots, heads, positions), or null
    int64_t slots;
};

// Rows that advance together: the slot of each and the position it writes.
struct Rows {
    int64_t count;
    const int64_t *slots, *positions;
};

// One vocabulary.
struct Head {
    int64_t books, vocab, panels;
    Product product;       // (books x vocab, width) float32, or int8 with scales
    const float* table;    // (books, vocab, width): embeddings
    const float* noise;    // (slots, books, vocab)
    int64_t* recent;       // (slots, books, WINDOW)
    float* logits;         // scratch: (slots, panels x 32)
};

// Settings, progress and results of every slot; pipeline/engine/cpu_state.py owns and documents them.
struct Slots {
    int64_t count, uniform_steps;
    const float *temperature, *dropped_mass, *powers, *uniforms;
    const int64_t *top_k, *min_steps, *max_steps, *eos;
    const bool *is_text, *from_noise;
    float* hidden;
    int64_t *positions, *steps;
    bool* active;
    float* out_hidden;
    int64_t* out_tokens;
    bool *out_emitted, *ended, *broken;
    // Scratch:
    int64_t* drawn;  // (slots, books)
    char* draws;     // of each thread: a vocabulary x 24 bytes
    int64_t draw_bytes;
};

constexpr int BOOKS = 4;

// All layers, for rows whose embeddings are in model.x. The state of row i goes to row `to[i]` of `states`, or to row i where
// `to` is null. Every thread runs all of it.
template <class Arithmetic>
void run_layers(Team& team, const Model& model, const Rows& rows, const Cache& cache, const Format& format, float* states, const int64_t* to) {
    const int64_t dim = model.head_dim, parts = dim / PANEL, width = model.width, heads = model.heads, mlp = model.mlp_width, count = rows.count;
    float* const x = model.x;
    float* const normed = model.normed + team.me * model.rows * width;
    float* const scores = model.scores + team.me * (model.positions + LANES);
    float* const fresh = model.fresh + team.me * model.rows * dim;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
    Multiplier<Arithmetic> multiplier(model.taken + team.me * model.rows * model.taken_width * 4);
    const auto product = [&](const Product& p, const float* inputs, int64_t depth, int64_t panels, auto finish) {
        multiplier.take(inputs, count, depth);
        team.share(panels, [&](int64_t panel) {
            multiplier.panel(p, panel, [&](int64_t row, const Sums& sums) { finish(row, panel, sums); });
        });
    };
    const auto add_to_x = [&](int64_t row, int64_t panel, const Sums& sums) {
        float* at = x + row * width + panel * PANEL;
        store(at, load(at) + sums[0]);
        store(at + LANES, load(at + LANES) + sums[1]);
    };

    for (int64_t index = 0; index < model.layers; index++) {
        const Layer& layer = model.stack[index];
        const auto kept = [&](char* numbers, float* scales, int64_t row, int64_t head) {
            const int64_t place = ((index * cache.slots + rows.slots[row]) * heads + head) * model.positions;
            return Kept{numbers + place * dim * format.bytes, scales ? scales + place : nullptr};
        };
        const auto keys = [&](int64_t row, int64_t head) { return kept(cache.keys, cache.key_scales, row, head); };
        const auto values = [&](int64_t row, int64_t head) { return kept(cache.values, cache.value_scales, row, head); };
        rms_norm(x, layer.attention_norm, count, width, model.eps, normed);
        multiplier.take(normed, count, width);
        team.share(3 * heads, [&](int64_t task) {  // a head's queries, keys or values: what is kept of it is rounded as a whole
            const int64_t kind = task / heads, head = task % heads;
            float* const numbers = kind == 0 ? model.queries + head * dim : fresh;
            const int64_t stride = kind == 0 ? width : dim;
            for (int64_t part = 0; part < parts; part++)
                multiplier.panel(layer.qkv, task * parts + part, [&](int64_t row, const Sums& sums) {
                    const int64_t low = part * LANES, high = low + dim / 2;  // numbers of the head in this panel
                    float* const at = numbers + row * stride;
                    Floats a = sums[0], b = sums[1];
                    if (kind < 2) {
                        const float *cos = model.cos + rows.positions[row] * dim, *sin = model.sin + rows.positions[row] * dim;
                        const auto rotated = [&](const Floats& one, const Floats& other, int64_t i) {
                            return one * load(cos + i) + other * load(sin + i);
                        };
                        a = rotated(sums[0], sums[1], low);
                        b = rotated(sums[1], sums[0], high);
                    }
                    if (kind == 0) {
                        a = a * all(scale);
                        b = b * all(scale);
                    }
                    store(at + low, a);
                    store(at + high, b);
                });
            if (kind == 0) return;
            for (int64_t row = 0; row < count; row++)
                format.write(fresh + row * dim, dim, kind == 1 ? keys(row, head) : values(row, head), rows.positions[row]);
        });
        team.share(heads * count, [&](int64_t task) {  // head by head: each thread gets long rows and short ones
            const int64_t head = task / count, row = task % count, at = row * width + head * dim;
            const char* const next = keys((task + 1) % count, (task + 1) / count % heads).numbers;
            format.attend(model.queries + at, keys(row, head), values(row, head), next, rows.positions[row], scores, model.seen + at);
        });
        product(layer.attention_out, model.seen, width, width / PANEL, add_to_x);
        rms_norm(x, layer.mlp_norm, count, width, model.eps, normed);
        product(layer.gate_up, normed, width, 2 * mlp / PANEL, [&](int64_t row, int64_t panel, const Sums& sums) {
            const Floats gate = sums[0] / (all(1.0f) + exponential(zeros() - sums[0]));  // SiLU
            store(model.hidden + row * mlp + panel * LANES, gate * sums[1]);
        });
        product(layer.down, model.hidden, mlp, width / PANEL, add_to_x);
    }
    team.share(count, [&](int64_t row) {
        rms_norm(x + row * width, model.final_norm, 1, width, model.eps, states + (to ? to[row] : row) * width);
    });
}

// A task for each row and codebook: its token, or -1, into slots.drawn. Rows [0, codes) are of the first head.
void draw_rows(Team& team, const Head (&heads)[2], const Slots& slots, const int64_t* slot_of, int64_t codes, int64_t texts) {
    char* const scratch = slots.draws + team.me * slots.draw_bytes;
    team.share(codes * BOOKS + texts, [&](int64_t task) {
        const bool is_text = task >= codes * BOOKS;
        const Head& head = heads[is_text];
        const int64_t row = is_text ? task - codes * BOOKS : task / BOOKS, book = is_text ? 0 : task % BOOKS;
        const int64_t slot = slot_of[is_text ? codes + row : row], step = slots.steps[slot];
        const int64_t uniform_step = std::min(step, slots.uniform_steps - 1), place = slot * head.books + book;
        const Wish wish{
            .temperature = slots.temperature[slot],
            .dropped_mass = slots.dropped_mass[slot],
            .powers = slots.powers + slot * (WINDOW + 1),
            .top_k = slots.top_k[slot],
            .eos = slots.eos[slot],
            .eos_forbidden = step < slots.min_steps[slot],
            .from_noise = slots.from_noise[slot],
            .uniform = slots.uniforms[(slot * slots.uniform_steps + uniform_step) * BOOKS + book],
            .noise = head.noise + place * head.vocab,
            .recent = head.recent + place * WINDOW,
        };
        uint32_t* const numbers = reinterpret_cast<uint32_t*>(scratch);
        const DrawScratch buffers{numbers, numbers + 2 * head.vocab, reinterpret_cast<double*>(numbers + 4 * head.vocab)};
        slots.drawn[(is_text ? codes + row : row) * BOOKS + book] =
            draw_token(head.logits + row * head.panels * PANEL + book * head.vocab, head.vocab, wish, buffers);
    });
}

enum class Outcome { EMITTED, ENDED, BROKEN };

// The outcome of one row's draws.
Outcome outcome(const int64_t* drawn, int64_t books, int64_t eos) {
    if (std::any_of(drawn, drawn + books, [](int64_t token) { return token < 0; })) return Outcome::BROKEN;
    return std::find(drawn, drawn + books, eos) < drawn + books ? Outcome::ENDED : Outcome::EMITTED;
}

// The embedding of a row's tokens: the sum over its codebooks.
void embed(const Head& head, const int64_t* drawn, int64_t width, float* out) {
    for (int64_t i = 0; i < width; i += LANES) {
        Floats sum = load(head.table + drawn[0] * width + i);
        for (int64_t book = 1; book < head.books; book++) sum = sum + load(head.table + (book * head.vocab + drawn[book]) * width + i);
        store(out + i, sum);
    }
}

void reset(const Model& model) {
    std::memset(static_cast<void*>(model.counts), 0, sizeof(Count) * (5 * model.layers + 5) * (model.threads + 1));
}

// All layers in the arithmetic of this model.
void run_layers(Team& team, const Model& model, const Rows& rows, const Cache& cache, float* states, const int64_t* to) {
    const Format format = cache.key_scales         ? format_of<int8_t>(model.head_dim)
                          : model.arithmetic == PLAIN_FLOAT ? format_of<float>(model.head_dim)
                                                    : format_of<bf16>(model.head_dim);
    const auto run = [&]<class Arithmetic>() { run_layers<Arithmetic>(team, model, rows, cache, format, states, to); };
    switch (model.arithmetic) {
        case PLAIN_FLOAT: return run.template operator()<Plain<float>>();
        case PLAIN_BF16: return run.template operator()<Plain<bf16>>();
        case PLAIN_INT8: return run.template operator()<Plain<int8_t>>();
        case PAIRS_INT8: return run.template operator()<Pairs>();
        case GROUPS_INT4: return run.template operator()<Groups>();
#ifdef __AMX_TILE__
        case TILE_BF16: return run.template operator()<TileBf16>();
        case TILE_INT8: return run.template operator()<TileInt8>();
#endif
    }
}

// The logits of rows of states, each head.panels * PANEL numbers.
template <class Weight>
void score_with(Team& team, const Head& head, const float* states, int64_t rows, int64_t width) {
    Multiplier<Plain<Weight>> multiplier(nullptr);
    multiplier.take(states, rows, width);
    team.share(head.panels, [&](int64_t panel) {
        multiplier.panel(head.product, panel, [&](int64_t row, const Sums& sums) {
            float* at = head.logits + (row * head.panels + panel) * PANEL;
            store(at, sums[0]);
            store(at + LANES, sums[1]);
        });
    });
}

void score(Team& team, const Head& head, const float* states, int64_t rows, int64_t width) {
    if (!rows) return;
    if (head.product.scales) return score_with<int8_t>(team, head, states, rows, width);
    score_with<float>(team, head, states, rows, width);
}

}  // namespace

// Rounds groups of 32 weights to codes and scales, before the first step.
extern "C" void round_weights(const float* weights, int64_t groups, int64_t threads, uint8_t* codes, uint16_t* scales) {
    round_groups(weights, groups, static_cast<int>(threads), codes, scales);
}

// Advance rows by the embeddings `in` (count, width); `out` (count, width) gets their states.
extern "C" void advance(const Model* model, const Rows* rows, const Cache* cache, const float* in, float* out) {
    std::memcpy(model->x, in, rows->count * model->width * sizeof(float));
    reset(*model);
    Crew::run(model->threads, [&](int64_t me, int64_t size) {
        Team team(me, size, model->counts);
        run_layers(team, *model, *rows, *cache, out, nullptr);
    });
}

// One step of every active slot: draw, feed back, advance. `number`: of the step within its round.
extern "C" void step(const Model* model, const Head (*heads)[2], const Slots* all, const Cache* cache, int64_t number) {
    const Slots& slots = *all;
    const Head &code = (*heads)[0], &text = (*heads)[1];
    const int64_t width = model->width;
    // 1) the slots that take part, codes first, and the states they start from
    int64_t* const slot_of = model->places + 3 * model->rows * model->threads;
    int64_t count = 0, codes = 0;
    for (const bool is_text : {false, true}) {
        for (int64_t slot = 0; slot < slots.count; slot++)
            if (slots.active[slot] && slots.is_text[slot] == is_text) slot_of[count++] = slot;
        if (!is_text) codes = count;
    }
    float* const states = model->seen;
    for (int64_t row = 0; row < count; row++) {
        const float* state = slots.hidden + slot_of[row] * width;
        std::memcpy(states + row * width, state, width * sizeof(float));
        std::memcpy(slots.out_hidden + (number * slots.count + slot_of[row]) * width, state, width * sizeof(float));
    }
    const auto head_of = [&](int64_t row) -> const Head& { return row < codes ? code : text; };
    const auto outcome_of = [&](int64_t row) {
        return outcome(slots.drawn + row * BOOKS, head_of(row).books, slots.eos[slot_of[row]]);
    };
    reset(*model);
    Crew::run(model->threads, [&](int64_t me, int64_t size) {
        Team team(me, size, model->counts);
        // 2) logits and draws
        score(team, code, states, codes, width);
        score(team, text, states + codes * width, count - codes, width);
        draw_rows(team, *heads, slots, slot_of, codes, count - codes);
        // 3) rows that make the step are fed back; every thread computes the same list for itself
        int64_t* const moved = model->places + 3 * model->rows * team.me;
        int64_t *const positions = moved + model->rows, *const drawers = positions + model->rows, movers = 0;
        for (int64_t row = 0; row < count; row++) {
            if (outcome_of(row) != Outcome::EMITTED) continue;
            moved[movers] = slot_of[row];
            positions[movers] = slots.positions[slot_of[row]];
            drawers[movers++] = row;
        }
        team.share(movers, [&](int64_t mover) {
            embed(head_of(drawers[mover]), slots.drawn + drawers[mover] * BOOKS, width, model->x + mover * width);
        });
        // 4) the layers
        if (movers) run_layers(team, *model, Rows{movers, moved, positions}, *cache, slots.hidden, moved);
    });
    // 5) advance the slots that made the step
    std::memset(slots.out_emitted + number * slots.count, 0, slots.count * sizeof(bool));
    for (int64_t row = 0; row < count; row++) {
        const int64_t slot = slot_of[row], *drawn = slots.drawn + row * BOOKS;
        const Head& head = head_of(row);
        const Outcome made = outcome_of(row);
        slots.broken[slot] |= made == Outcome::BROKEN;
        slots.ended[slot] |= made == Outcome::ENDED;
        slots.out_emitted[number * slots.count + slot] = made == Outcome::EMITTED;
        for (int64_t book = 0; book < BOOKS; book++)
            slots.out_tokens[(number * slots.count + slot) * BOOKS + book] = drawn[book % head.books];
        slots.active[slot] = false;
        if (made != Outcome::EMITTED) continue;
        for (int64_t book = 0; book < head.books; book++) {
            int64_t* recent = head.recent + (slot * head.books + book) * WINDOW;
            std::memmove(recent, recent + 1, (WINDOW - 1) * sizeof(int64_t));
            recent[WINDOW - 1] = drawn[book];
        }
        // A full slot's position stays in range; its sequence has ended by its step cap.
        slots.positions[slot] = std::min(slots.positions[slot] + 1, model->positions - 1);
        slots.active[slot] = ++slots.steps[slot] < slots.max_steps[slot];
    }
}
