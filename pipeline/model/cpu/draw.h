// draw: one token out of one row of logits.
//
// In:    logits, a row's sampling values, its recent draws, its randomness
// Out:   a token
// Owns:  nothing: the scratch is the caller's
// Never: a slot's state
//
// The twin of pipeline/model/sampling.py, filter by filter, in the order described there. Logits are
// float32 and divided and penalised as there, so they are torch's to the last bit; probabilities and their sums are double
// on both sides and taken in the same order, so that only a tie of 1e-16 could be drawn otherwise.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

constexpr int WINDOW = 16;  // draws a repetition penalty looks back; pipeline/spec.py
constexpr int KEPT = 3;     // tokens that top-p and top-k leave at least; likewise

// The sampling values of one row.
struct Wish {
    float temperature, dropped_mass;
    const float* powers;  // (WINDOW + 1,): the repetition penalty to the power of 0, 1, ...
    int64_t top_k, eos;
    bool eos_forbidden, from_noise;
    float uniform;
    const float* noise;     // (vocab,)
    const int64_t* recent;  // (WINDOW,)
};

// For a vocabulary's worth of tokens.
struct DrawScratch {
    uint32_t *keys, *order;  // two each
    double* mass;
};

// An unsigned number that sorts as the float does; both zeros are one.
inline uint32_t sort_key(float value) {
    value += 0.0f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Ascending, equal values by their index: sorts by one byte after another. The order is where the last pass left it.
inline const uint32_t* sorted(const float* values, int64_t count, const DrawScratch& s) {
    constexpr int PASSES = 4, BUCKETS = 256;
    uint32_t starts[PASSES][BUCKETS] = {};
    uint32_t *keys = s.keys, *order = s.order, *next_keys = s.keys + count, *next_order = s.order + count;
    for (int64_t i = 0; i < count; i++) {
        keys[i] = sort_key(values[i]);
        order[i] = static_cast<uint32_t>(i);
        for (int pass = 0; pass < PASSES; pass++) starts[pass][keys[i] >> 8 * pass & 255]++;
    }
    for (int pass = 0; pass < PASSES; pass++) {
        uint32_t sum = 0;
        for (uint32_t& start : starts[pass]) {
            const uint32_t size = start;
            start = sum;
            sum += size;
        }
        for (int64_t i = 0; i < count; i++) {
            const uint32_t to = starts[pass][keys[i] >> 8 * pass & 255]++;
            next_keys[to] = keys[i];
            next_order[to] = order[i];
        }
        std::swap(keys, next_keys);
        std::swap(order, next_order);
    }
    return order;
}

// The token, or -1 where a logit is not finite. Overwrites the logits.
inline int64_t draw_token(float* logits, int64_t vocab, const Wish& wish, const DrawScratch& s) {
    bool finite = true;
    for (int64_t i = 0; i < vocab; i++) {
        finite &= std::fabs(logits[i]) < INFINITY;
        logits[i] /= wish.temperature;
    }
    if (!finite) return -1;
    for (int i = 0; i < WINDOW; i++) {
        const int64_t token = wish.recent[i];
        int before = 0, count = 0;
        for (int j = 0; j < WINDOW; j++) {
            before += j < i && wish.recent[j] == token;
            count += wish.recent[j] == token;
        }
        if (token == vocab || before) continue;  // an unused place; a token already penalised
        logits[token] = logits[token] < 0 ? logits[token] * wish.powers[count] : logits[token] / wish.powers[count];
    }
    const uint32_t* const order = sorted(logits, vocab, s);
    const auto value = [&](int64_t place) { return logits[order[place]]; };

    // top-p: drops the smallest while their cumulated probability stays within the dropped mass
    const double highest = value(vocab - 1);
    double total = 0;
    for (int64_t i = 0; i < vocab; i++) total += s.mass[i] = std::exp(value(i) - highest);
    int64_t first = 0;
    double cumulated = 0;
    while (first < vocab - KEPT && (cumulated += s.mass[first] / total) <= wish.dropped_mass) first++;
    // top-k: drops everything below the k-th largest
    const int64_t k = std::min<int64_t>(std::max<int64_t>(wish.top_k, KEPT), vocab);
    if (vocab - k > first) {
        const float threshold = value(vocab - k);
        while (value(first) < threshold) first++;
    }

    // what is left, in the order of tokens
    double largest = -INFINITY;
    for (int64_t i = vocab - 1; i >= first && largest == -INFINITY; i--)
        if (!wish.eos_forbidden || order[i] != wish.eos) largest = value(i);
    std::memset(s.mass, 0, vocab * sizeof(double));
    for (int64_t i = first; i < vocab; i++)
        if (!wish.eos_forbidden || order[i] != wish.eos) s.mass[order[i]] = std::exp(value(i) - largest);
    total = 0;
    for (int64_t i = 0; i < vocab; i++) total += s.mass[i];
    if (wish.from_noise) {
        int64_t best = 0;
        float best_ratio = -1;
        for (int64_t i = 0; i < vocab; i++) {
            const float ratio = static_cast<float>(s.mass[i] / total) / wish.noise[i];
            if (ratio > best_ratio) best = i, best_ratio = ratio;
        }
        return best;
    }
    double whole = 0;
    for (int64_t i = 0; i < vocab; i++) whole += s.mass[i] /= total;
    const double reached = static_cast<double>(wish.uniform) * whole;
    cumulated = 0;
    for (int64_t i = 0; i < vocab; i++)
        if ((cumulated += s.mass[i]) > reached) return i;
    return vocab - 1;
}

}  // namespace
