"""The incremental vocoder: torch's numbers, and bits that do not depend on how an utterance was cut."""

import asyncio
import shutil
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.checkpoint.layout import SMALL_FILES
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.config import VocoderConfig
from pipeline.errors import CheckpointError, ConfigError, EngineDead, EngineFault
from pipeline.native import compiler, instructions
from pipeline.native.instructions import Instructions, usable
from pipeline.paths import cache_home
from pipeline.spec import HOP
from pipeline.types import DecoderState, HiddenWindow, StepBatch
from pipeline.vocoder.incremental.incremental_network import PASS, IncrementalVocoder
from pipeline.vocoder.incremental.vocoder_packing import inverse_transform
from pipeline.vocoder.strategies import make_strategy
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.vocoder_fingerprint import vocoder_fingerprint
from pipeline.vocoder.windowed.network import build_network
from tests.support.effort import examples
from tests.support.machine import needs_instructions, needs_native
from tests.support.reference_vocoder import decode_whole
from tests.support.small_vocoder import with_small_vocoder

LONG = PASS + 30  # steps: more than two passes of frames
IN_VECTORS, IN_TILES = 5e-6, 3e-5  # largest errors, against torch's float32; in tiles an input has 16 bits, and so has a weight
ARITHMETICS = [pytest.param(instructions, marks=needs_instructions(instructions)) for instructions in Instructions]


@cache
def demo() -> Checkpoint:
    return open_checkpoint(resolve("small-random", cache_home()))


@cache
def network(*, use_decoder: bool, instructions: Instructions | None = None) -> IncrementalVocoder:
    return IncrementalVocoder(VocoderConfig(use_decoder=use_decoder), demo(), instructions=instructions)


def make_rows(length: int, *, use_decoder: bool) -> np.ndarray:
    random = np.random.default_rng(length)
    if use_decoder:
        return random.standard_normal((length, demo().gpt_spec.width), np.float32)
    return random.integers(0, 625, (length, 4)).astype(np.float32)


def in_calls(net: IncrementalVocoder, rows: np.ndarray, cuts: list[int]) -> np.ndarray:
    """Decodes an utterance in calls of `cuts` steps, in turns; a call may have none."""
    samples, state, fed, turn = [], None, 0, 0
    while True:
        stop = min(len(rows), fed + cuts[turn % len(cuts)])
        answer = net(StepBatch(rows[fed:stop], state, is_last=stop == len(rows)))
        samples.append(answer.samples)
        fed, state, turn = stop, answer.state, turn + 1
        if stop == len(rows):
            assert state is None
            return np.concatenate(samples)


def bits(samples: np.ndarray) -> np.ndarray:
    return samples.view(np.uint32)


@needs_native
@pytest.mark.parametrize("instructions", ARITHMETICS)
@pytest.mark.parametrize("use_decoder", [True, False], ids=["hidden", "codes"])
def test_the_numbers_are_those_of_the_whole_utterance_in_torch(use_decoder, instructions):
    twin = build_network(VocoderConfig(use_decoder=use_decoder), demo())
    for length in (1, 2, 3, 12, 13, 14, 25, 26, 27, 60, LONG):
        rows = make_rows(length, use_decoder=use_decoder)
        samples = network(use_decoder=use_decoder, instructions=instructions)(StepBatch(rows, None, is_last=True)).samples
        assert samples.shape == ((2 * length - 1) * HOP,)
        assert np.abs(samples - decode_whole(twin, rows)).max() <= (
            IN_TILES if instructions is Instructions.AMX else IN_VECTORS
        )
        assert np.abs(samples).max() > 0.1


@needs_native
@pytest.mark.parametrize("instructions", ARITHMETICS)
def test_a_small_vocoder_of_other_widths_decodes_as_in_torch(instructions, demo_root, tmp_path):
    root, small = with_small_vocoder(demo_root, tmp_path / "small"), VocoderConfig(size="small")
    checkpoint, rows = open_checkpoint(root), make_rows(60, use_decoder=True)
    native = IncrementalVocoder(small, checkpoint, instructions=instructions)
    expected = decode_whole(build_network(small, checkpoint), rows)
    samples = in_calls(native, rows, [5, 0, 31])
    assert np.abs(samples - expected).max() <= (IN_TILES if instructions is Instructions.AMX else IN_VECTORS)
    assert np.abs(expected).max() > 0.05
    assert not np.allclose(expected, decode_whole(build_network(VocoderConfig(), checkpoint), rows))


def test_a_checkpoint_without_a_small_vocoder_says_what_to_do(demo_root, tmp_path):
    small = VocoderConfig(size="small")
    for decode in (build_network, vocoder_fingerprint):
        with pytest.raises(CheckpointError, match=r"set pipeline\.vocoder\.size to full, or learn a small one"):
            decode(small, demo())
    checkpoint = open_checkpoint(with_small_vocoder(demo_root, tmp_path / "small"))
    before = vocoder_fingerprint(small, checkpoint), vocoder_fingerprint(VocoderConfig(), checkpoint)
    shutil.copy(checkpoint.root / SMALL_FILES[1], checkpoint.root / SMALL_FILES[0])
    after = vocoder_fingerprint(small, checkpoint), vocoder_fingerprint(VocoderConfig(), checkpoint)
    assert before[0] not in (before[1], after[0])
    assert before[1] == after[1], "the full vocoder's audio keeps its name"
    with pytest.raises(ValueError, match="no small vocoder for codes"):
        VocoderConfig(size="small", use_decoder=False)


@needs_native
def test_an_utterance_of_no_steps_has_no_samples():
    answer = network(use_decoder=True)(StepBatch(make_rows(0, use_decoder=True), None, is_last=True))
    assert (answer.samples.shape, answer.state) == ((0,), None)


@needs_native
@pytest.mark.parametrize("instructions", ARITHMETICS)
@settings(max_examples=examples(60))
@given(
    length=st.integers(1, LONG),
    cuts=st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(any),
    use_decoder=st.booleans(),
    threads=st.integers(1, 3),
)
def test_no_bit_depends_on_the_cuts_or_the_threads(instructions, length, cuts, use_decoder, threads):
    rows = make_rows(length, use_decoder=use_decoder)
    whole = network(use_decoder=use_decoder, instructions=instructions)(StepBatch(rows, None, is_last=True)).samples
    other = _of_threads(threads, use_decoder=use_decoder, instructions=instructions)
    assert np.array_equal(bits(in_calls(other, rows, cuts)), bits(whole))


@cache
def _of_threads(threads: int, *, use_decoder: bool, instructions: Instructions) -> IncrementalVocoder:
    return IncrementalVocoder(VocoderConfig(use_decoder=use_decoder, threads=threads), demo(), instructions=instructions)


@needs_native
def test_samples_come_as_soon_as_no_later_step_can_change_them():
    net = network(use_decoder=True)
    rows = make_rows(40, use_decoder=True)
    first = net(StepBatch(rows[:30], None, is_last=False)).samples
    changed = rows.copy()
    changed[30:] += 1
    for later in (rows, changed):
        whole = net(StepBatch(later, None, is_last=True)).samples
        assert np.array_equal(bits(whole[: len(first)]), bits(first))
    first_samples, other = (net(StepBatch(later, None, is_last=True)).samples[len(first) :] for later in (rows, changed))
    assert not np.array_equal(first_samples[:HOP], other[:HOP]), "not one hop later than they could"
    assert len(first) == (2 * 30 - net.reach) * HOP
    assert net.reach_steps == -(-net.reach // 2)


@needs_native
def test_the_state_is_a_value():
    """Two continuations of one beginning do not change its state."""
    net = network(use_decoder=True)
    rows = make_rows(60, use_decoder=True)
    state = net(StepBatch(rows[:20], None, is_last=False)).state
    assert state is not None
    copy = state.memory.copy()
    state.memory.flags.writeable = False
    samples = net(StepBatch(rows[20:], state, is_last=True)).samples
    net(StepBatch(-rows[20:], state, is_last=False))
    assert np.array_equal(bits(state.memory), bits(copy))
    assert np.array_equal(bits(net(StepBatch(rows[20:], state, is_last=True)).samples), bits(samples))


@needs_native
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_a_broken_utterance_sounds_broken_and_touches_no_other(value):
    net = network(use_decoder=True)
    rows = make_rows(60, use_decoder=True)
    before = net(StepBatch(rows, None, is_last=True)).samples
    broken = rows.copy()
    broken[40] = value
    assert not np.isfinite(in_calls(net, broken, [16])).all()
    assert np.array_equal(bits(net(StepBatch(rows, None, is_last=True)).samples), bits(before))


@pytest.mark.parametrize("instructions", ARITHMETICS)
def test_another_kind_of_machine_goes_on_with_what_one_began(instructions):
    """All but tiles compute the same bits."""
    rows, least = make_rows(60, use_decoder=True), usable()[-1]
    begun = network(use_decoder=True, instructions=instructions)(StepBatch(rows[:40], None, is_last=False))
    ended = network(use_decoder=True, instructions=least)(StepBatch(rows[40:], begun.state, is_last=True))
    whole = network(use_decoder=True, instructions=least)(StepBatch(rows, None, is_last=True)).samples
    errors = np.abs(np.concatenate([begun.samples, ended.samples]) - whole)
    assert errors.max() <= (IN_TILES if instructions is Instructions.AMX else 0)


@needs_native
def test_a_state_of_another_network_is_refused():
    net = network(use_decoder=True)
    rows = make_rows(10, use_decoder=True)
    state = net(StepBatch(rows, None, is_last=False)).state
    assert state is not None
    theirs = network(use_decoder=False)(StepBatch(make_rows(10, use_decoder=False), None, is_last=False)).state
    for wrong in (
        theirs,
        DecoderState(state.network + 1, 10, state.memory),
        DecoderState(state.network, 10, state.memory[1:]),
        DecoderState(state.network, -1, state.memory),
        DecoderState(state.network, 10, state.memory.astype(np.float64)),
    ):
        with pytest.raises(EngineFault, match="another checkpoint"):
            net(StepBatch(rows, wrong, is_last=False))
    with pytest.raises(EngineFault, match="numbers per step"):
        net(StepBatch(rows[:, 1:], None, is_last=True))


def test_the_matrix_is_the_inverse_fourier_transform_and_its_window():
    random = torch.Generator().manual_seed(0)
    real, imaginary = torch.randn(2, 5, 513, generator=random)
    window = torch.hann_window(1024)
    expected = torch.fft.irfft(torch.complex(real, imaginary), 1024) * window
    assert (
        torch.cat([real, imaginary], 1) @ torch.from_numpy(inverse_transform(window.numpy())).T - expected
    ).abs().max() < 1e-6


@needs_native
def test_only_a_cpu_with_exact_look_ahead_carries_by_itself():
    assert make_strategy(VocoderConfig(), demo()).traits.is_stateful
    assert not make_strategy(VocoderConfig.varied({"look_ahead": 8}), demo()).traits.is_stateful
    assert not make_strategy(VocoderConfig(method="windows"), demo()).traits.is_stateful
    for wrong in ({"look_ahead": 8}, {"device": "cuda"}):
        with pytest.raises(ValueError, match="method incremental needs"):
            VocoderConfig.varied(dict(method="incremental", **wrong))


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(instructions.platform, "machine", lambda: "riscv64")
    compiler.library.cache_clear()
    yield
    compiler.library.cache_clear()


def test_a_machine_that_cannot_carry_decodes_windows_and_says_so(no_compiler, caplog):
    traits = make_strategy(VocoderConfig(), demo()).traits
    assert (traits.is_stateful, traits.look_ahead, traits.chunk_steps[-1]) == (False, 52, 96)
    assert "vocoder.method" in caplog.text


def test_an_impossible_incremental_method_is_a_configuration_error(no_compiler):
    with pytest.raises(ConfigError, match=r"vocoder\.method incremental is not possible here"):
        make_strategy(VocoderConfig(method="incremental"), demo())


@needs_native
def test_a_vocoder_feeds_and_refuses_the_other_kind_of_work():
    vocoder = Vocoder(VocoderConfig(threads=1), demo())
    try:
        vocoder.warm_up()
        traits = asyncio.run(vocoder.traits())
        assert (traits.is_stateful, traits.look_ahead) == (True, network(use_decoder=True).reach_steps)
        assert (vocoder.stats().calls, vocoder.stats().jobs, vocoder.stats().is_stateful) == (1, 1, True)
        rows = make_rows(20, use_decoder=True)
        decoded = asyncio.run(vocoder.feed(StepBatch(rows, None, is_last=True)))
        assert np.array_equal(
            bits(decoded.samples), bits(network(use_decoder=True)(StepBatch(rows, None, is_last=True)).samples)
        )
        window = HiddenWindow(np.zeros((112, rows.shape[1]), np.float32), 0, 112, 52, 60, is_last=False)
        with pytest.raises(EngineFault, match="takes step batches, not windows"):
            asyncio.run(vocoder.decode(window))
        vocoder.check_health()
    finally:
        vocoder.close()
    with pytest.raises(EngineDead):
        asyncio.run(vocoder.feed(StepBatch(rows, None, is_last=True)))


def test_a_vocoder_of_windows_refuses_feeds():
    method = make_strategy(VocoderConfig(method="windows"), demo())
    with pytest.raises(EngineFault, match="keeps no state"):
        method.check(StepBatch(make_rows(3, use_decoder=True), None, is_last=True))


@needs_native
def test_a_streams_first_chunk_goes_before_the_rest():
    method = make_strategy(VocoderConfig.varied({"chunk_steps": (4,)}), demo())
    first = method.traits.look_ahead + 4
    rows = make_rows(60, use_decoder=True)
    memory = np.zeros(0, np.float32)

    def urgent(before: int, count: int, *, is_last: bool = False) -> bool:
        return method.is_urgent(StepBatch(rows[:count], DecoderState(0, before, memory) if before else None, is_last))

    assert not urgent(0, first - 1)
    assert urgent(0, first)
    assert urgent(0, 2, is_last=True)
    assert urgent(first - 1, 1)
    assert not urgent(first, 8)
    assert not urgent(first, 8, is_last=True)
