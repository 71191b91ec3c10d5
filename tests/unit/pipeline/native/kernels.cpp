// kernels: what the headers of pipeline/native compute, one by one, for test_kernels.py.
#include <cmath>

#include "product.h"

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
}

// Every function on sixteen numbers, or on four times sixteen; `count` of them are read by load_first.
extern "C" void functions(const float* x, int64_t count, float* exponentials, uint16_t* rounded, int8_t* bytes, int16_t* shorts, float* first,
                          float* sums) {
    const Floats numbers = load(x);
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
