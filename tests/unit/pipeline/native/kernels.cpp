// kernels: what the headers of pipeline/native compute, one by one, for test_kernels.py. As a program, for another kind of
// processor, it answers one question after another: numbers in, numbers out.
#include <cmath>
#include <cstdio>
#include <vector>

#include "../../../../pipeline/vocoder/incremental/functions.h"
#include "product.h"
#include "product_groups.h"
#include "round_groups.h"

// x (rows, inputs) times packed weights (outputs, inputs) into out (rows, outputs); `kind` names the arithmetic.
extern "C" void product(int64_t kind, const void* weights, const float* scales, const float* x, int64_t rows, int64_t inputs, int64_t outputs,
                        void* scratch, float* out) {
    const auto run = [&]<class Arithmetic>() {
        Multiplier<Arithmetic> multiplier(scratch);
        multiplier.take(x, rows, inputs);
        for (int64_t panel = 0; panel < outputs / PANEL; panel++)
            multiplier.panel({weights, scales}, panel, [&](int64_t row, const Sums& sums) {
                store(out + row * outputs + panel * PANEL, sums[0]);
                store(out + row * outputs + panel * PANEL + LANES, sums[1]);
            });
    };
    if (kind == 0) run.operator()<Plain<float>>();
    if (kind == 1) run.operator()<Plain<bf16>>();
    if (kind == 2) run.operator()<Plain<int8_t>>();
    if (kind == 3) run.operator()<Pairs>();
    if (kind == 6) run.operator()<Groups>();
}

extern "C" void round_weights(const float* weights, int64_t groups, int64_t threads, uint8_t* codes, uint16_t* scales) {
    round_groups(weights, groups, static_cast<int>(threads), codes, scales);
}

// Every function on sixteen numbers, or on four times sixteen; `count` of them are read by load_first.
extern "C" void functions(const float* x, int64_t count, float* exponentials, uint16_t* rounded, int8_t* bytes, int16_t* shorts, float* first,
                          float* sums, float* gelus, float* sines, float* cosines) {
    const Floats numbers = load(x);
    Floats sine, cosine;
    sine_cosine(numbers, sine, cosine);
    store(sines, sine);
    store(cosines, cosine);
    store(gelus, gelu(numbers));
    store(exponentials, exponential(numbers));
    store_rounded(rounded, numbers);
    store_bytes(bytes, integers(numbers));
    store_shorts(shorts, integers(numbers));
    store(first, load_first(x, count));
    sums[0] = sum(numbers);
    sums[1] = largest(numbers);
    const Floats four[4] = {numbers, load(x + LANES), load(x + 2 * LANES), load(x + 3 * LANES)};
    store_four_sums(sums + 2, four);
    const Integers whole[4] = {integers(four[0]), integers(four[1]), integers(four[2]), integers(four[3])};
    store_four_sums(sums + 6, whole);
}

template <class T>
std::vector<T> next(int64_t count) {
    std::vector<T> numbers(count);
    return std::fread(numbers.data(), sizeof(T), count, stdin) == static_cast<size_t>(count) ? numbers : std::vector<T>();
}

template <class T>
void answer(const std::vector<T>& numbers) {
    std::fwrite(numbers.data(), sizeof(T), numbers.size(), stdout);
}

int main() {
    for (std::vector<int64_t> asked; !(asked = next<int64_t>(5)).empty();) {
        const int64_t kind = asked[0], rows = asked[1], inputs = asked[2], outputs = asked[3], bytes = asked[4];
        if (kind >= 0) {
            const auto weights = next<char>(bytes);
            const auto scales = next<float>(outputs), x = next<float>(rows * inputs);
            std::vector<float> scratch(rows * (inputs + 1)), out(rows * outputs);
            product(kind, weights.data(), kind < 2 ? nullptr : scales.data(), x.data(), rows, inputs, outputs, scratch.data(), out.data());
            answer(out);
        } else if (kind == -2) {
            const auto weights = next<float>(rows * GROUP_INPUTS);
            std::vector<uint8_t> codes(rows * GROUP_INPUTS);
            std::vector<uint16_t> scales(rows);
            round_weights(weights.data(), rows, 1, codes.data(), scales.data());
            answer(codes), answer(scales);
        } else {
            const auto x = next<float>(4 * LANES);
            std::vector<float> exponentials(LANES), first(LANES), sums(LANES), gelus(LANES), sines(LANES), cosines(LANES);
            std::vector<uint16_t> rounded(LANES);
            std::vector<int8_t> narrow(LANES);
            std::vector<int16_t> shorts(LANES);
            functions(x.data(), rows, exponentials.data(), rounded.data(), narrow.data(), shorts.data(), first.data(), sums.data(), gelus.data(),
                      sines.data(), cosines.data());
            answer(exponentials), answer(rounded), answer(narrow), answer(shorts), answer(first), answer(sums), answer(gelus);
            answer(sines), answer(cosines);
        }
    }
}
