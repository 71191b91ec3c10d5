import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.native.memory import ALIGNMENT, HUGE_PAGE, Arena, aligned, pack
from tests.support.effort import examples


@settings(max_examples=examples(50))
@given(panels=st.integers(1, 4), inputs=st.integers(1, 8), pair=st.booleans())
def test_packing_loses_nothing_and_moves_everything_where_it_is_read(panels, inputs, pair):
    inputs *= 2
    weight = torch.arange(panels * 32 * inputs).view(panels * 32, inputs).to(torch.bfloat16 if pair else torch.float32)
    packed = pack(weight).flatten()
    for output in range(0, panels * 32, 7):
        for index in range(inputs):
            panel, lane = divmod(output, 32)
            place = (
                (panel * inputs // 2 + index // 2) * 64 + lane * 2 + index % 2 if pair else (panel * inputs + index) * 32 + lane
            )
            assert packed[place] == weight[output, index]


def test_weights_in_an_arena_begin_at_a_cache_line_the_first_at_a_page():
    weights = [torch.arange(size, dtype=torch.float32) for size in (3, 16, 33)]
    arena = Arena(sum(weight.nbytes + ALIGNMENT for weight in weights))
    kept = [arena.keep(weight) for weight in weights]
    assert kept[0].data_ptr() % HUGE_PAGE == 0
    for weight, copy in zip(weights, kept, strict=True):
        assert copy.data_ptr() % ALIGNMENT == 0
        assert torch.equal(weight, copy)
    assert aligned(100).data_ptr() % ALIGNMENT == 0
    assert len(aligned(100)) >= 100
    assert not aligned(100).any()
