import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.native.memory import ALIGNMENT, HUGE_PAGE, Arena, address, aligned, pack
from tests.support.effort import examples


@settings(max_examples=examples(50))
@given(panels=st.integers(1, 4), inputs=st.integers(1, 8), pair=st.booleans())
def test_packing_loses_nothing_and_moves_everything_where_it_is_read(panels, inputs, pair):
    inputs *= 2
    weight = np.arange(panels * 32 * inputs).reshape(panels * 32, inputs).astype(np.uint16 if pair else np.float32)
    packed = pack(weight).ravel()
    for output in range(0, panels * 32, 7):
        for index in range(inputs):
            panel, lane = divmod(output, 32)
            place = (
                (panel * inputs // 2 + index // 2) * 64 + lane * 2 + index % 2 if pair else (panel * inputs + index) * 32 + lane
            )
            assert packed[place] == weight[output, index]


def test_weights_in_an_arena_begin_at_a_cache_line_the_first_at_a_page():
    weights = [np.arange(size, dtype=np.float32) for size in (3, 16, 33)]
    arena = Arena(sum(weight.nbytes + ALIGNMENT for weight in weights))
    kept = [arena.keep(weight) for weight in weights]
    assert address(kept[0]) % HUGE_PAGE == 0
    for weight, copy in zip(weights, kept, strict=True):
        assert address(copy) % ALIGNMENT == 0
        assert np.array_equal(weight, copy)
    assert address(aligned(100)) % ALIGNMENT == 0
    assert len(aligned(100)) >= 100
    assert not aligned(100).any()


FREED = """
import numpy as np
from pipeline.native.memory import return_free_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

kept = [np.ones(64 << 10, np.uint8) for _ in range(1000)]
last = np.ones(64 << 10, np.uint8)  # above the others: what is below it does not go back by itself
kept.clear()
before = resident()
return_free_memory()
print(before - resident())
"""


def test_freed_memory_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50 << 20
