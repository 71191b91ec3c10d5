"""The acoustic model against the ChatTTS package on the same checkpoint: states to 1e-4, codes and refined text exactly.

Both read the same phones: the package does not know the dictionary that a checkpoint may bring.
"""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import ChatTTS
import numpy as np
import pytest
import torch
from ChatTTS.model.processors import gen_logits
from ChatTTS.model.speaker import Speaker
from numpy.typing import NDArray
from tokenizers import Tokenizer

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.engine import Engine
from pipeline.model.gpt import ActiveExtent, Gpt, KeysValues
from pipeline.model.sampling import RowParams, filter_logits
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import RefineParams, SamplingParams, SeedMode, Segment, Voice
from scripts.bench.upstream import load_chat
from tests.support.effort import examples
from tests.support.factories import Take, collect

STEPS = 64
TEXTS = [
    "hello there how are you today", "the quick brown fox jumps over the lazy dog", "you and i", "你好世界",
    "今天天气很好，我们出去走走。", "四是四，十是十", "我在用python写代码", "hello 世界 goodbye 再见",
    "well [uv_break] let me think [laugh] about it", "一二三 [lbreak] four five six",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """One request, as both sides take it."""

    text: str
    voice: Voice
    seed: int
    speed: int


@dataclass(frozen=True, eq=False)
class Pair:
    """The package and our engine on one checkpoint."""

    chat: ChatTTS.Chat
    engine: Engine
    tokenizer: PromptTokenizer
    width: int
    root: Path
    is_large: bool


@pytest.fixture(scope="module", params=["demo", "taught", "full_random"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    root = request.getfixturevalue(f"{request.param}_root")
    checkpoint = open_checkpoint(root)
    config = EngineConfig(slots=8, max_prompt=256, max_steps=256)
    with closing(Engine(config, checkpoint)) as engine:
        tokenizer = PromptTokenizer(root, max_prompt=config.max_prompt)
        chat = load_chat(root)
        # transformers puts BERT's own normaliser in place of the file's, which would turn phones into lower-case letters.
        files = Tokenizer.from_file(str(root / "asset" / "tokenizer" / "tokenizer.json"))
        chat.tokenizer._tokenizer.backend_tokenizer.normalizer = files.normalizer
        yield Pair(chat, engine, tokenizer, checkpoint.gpt_spec.width, root, is_large=request.param == "full_random")


def cases(width: int) -> list[Case]:
    """Twenty texts, voices, seeds and speeds, a cloned voice among them."""
    random = np.random.default_rng(0)
    voices = [
        Voice("none", None),
        Voice("one", random.standard_normal(width).astype(np.float16)),
        Voice("two", random.standard_normal(width).astype(np.float16)),
        Voice(
            "cloned",
            random.standard_normal(width).astype(np.float16),
            sample_codes=random.integers(0, 625, size=(30, 4)),
            sample_text="this is a reference",
        ),
    ]
    return [
        Case(TEXTS[number % len(TEXTS)], voices[number % len(voices)], seed=number * 7919, speed=number % 10)
        for number in range(20)
    ]


def upstream_take(pair: Pair, case: Case, steps: int = STEPS) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Codes (n, 4) and hidden (n, width) of the package at batch 1, with at least `steps` forced."""
    voice = case.voice
    params = ChatTTS.Chat.InferCodeParams(
        prompt=f"[speed_{case.speed}]",
        spk_emb=None if voice.embedding is None else Speaker._encode(torch.from_numpy(voice.embedding)),
        spk_smp=None if voice.sample_codes is None else Speaker.encode_prompt(torch.from_numpy(voice.sample_codes.T)),
        txt_smp=pair.tokenizer.pronounced(voice.sample_text) or None,
        manual_seed=case.seed,
        max_new_token=steps,
        min_new_token=steps,
        show_tqdm=False,
    )
    (result,) = pair.chat._infer_code([pair.tokenizer.pronounced(case.text)], False, torch.device("cpu"), True, params)
    return result.ids[0].numpy(), result.hiddens[0].numpy()


def our_takes(pair: Pair, requests: list[Case], steps: int = STEPS) -> list[Take]:
    """The same through our text front end and engine, all at once."""

    async def run(case: Case) -> Take:
        segment = Segment(case.text, 0, is_last=True)
        prompt = pair.tokenizer.code_prompt(segment, case.voice, speed_token=case.speed, max_steps=steps)
        sampling = SamplingParams(seed=case.seed, seed_mode=SeedMode.UPSTREAM, min_steps=steps)
        take = await collect(pair.engine.generate(prompt, sampling, timeout_s=280, admitted=True))
        return Take(take.hidden[:steps], take.codes[:steps], take.finish)

    async def all_at_once() -> list[Take]:
        return await asyncio.gather(*map(run, requests))

    return asyncio.run(all_at_once())


def test_codes_equal_and_states_agree_for_64_steps(pair):
    requests = cases(pair.width)
    if pair.is_large:
        requests = requests[: examples(len(requests))]  # the first four have every kind of voice
    ours = our_takes(pair, requests)
    worst = 0.0
    for case, take in zip(requests, ours, strict=True):
        codes, hidden = upstream_take(pair, case)
        assert codes.shape == (STEPS, 4)
        np.testing.assert_array_equal(take.codes, codes, err_msg=f"codes of {case}")
        worst = max(worst, float(np.abs(take.hidden - hidden).max()))
    assert worst <= 1e-4
    print(f"largest difference of a hidden state: {worst:.1e}")


def test_another_seed_gives_other_codes(pair):
    """Or the test above could pass without looking."""
    case = cases(pair.width)[1]
    first, second = our_takes(pair, [case, Case(case.text, case.voice, case.seed + 1, case.speed)])
    assert not np.array_equal(first.codes, second.codes)


def test_prefill_and_step_states_agree(pair):
    """Without the engine: one forward over a prompt, one over the next position, against transformers' model."""
    checkpoint = open_checkpoint(pair.root)
    spec = checkpoint.gpt_spec
    gpt = Gpt(in_torch(checkpoint.gpt()), spec, positions=64, rows=2, device=torch.device("cpu"), dtype=torch.float32)
    x = torch.randn(1, 33, spec.width, generator=torch.Generator().manual_seed(0)) * 0.5
    cache = KeysValues(*(torch.zeros(spec.layers, 2, spec.heads, 64, spec.head_dim) for _ in range(2)))
    with torch.inference_mode():
        expected = pair.chat.gpt.gpt(inputs_embeds=x, use_cache=False).last_hidden_state[0]
        padded = torch.zeros(1, 32, spec.width)
        padded[:, :32] = x[:, :32]
        prefilled = gpt.prefill(padded, torch.tensor([1]), torch.tensor([31]), cache)
        step = gpt.decode(x[0, 32].expand(2, -1), torch.tensor([5, 32]), cache, ActiveExtent(2, 64))
    assert (prefilled[0] - expected[31]).abs().max() <= 1e-4
    assert (step[1] - expected[32]).abs().max() <= 1e-4


@pytest.mark.parametrize("penalty", [1.0, 1.05, 1.7])
@pytest.mark.parametrize(("top_p", "top_k"), [(0.7, 20), (0.95, 5), (0.2, 3), (1.0, 626)])
def test_filtered_logits_equal_the_packages(top_p, top_k, penalty):
    generator = torch.Generator().manual_seed(int(top_p * 100) + top_k)
    logits = torch.randn(4, 626, generator=generator) * 2
    recent = torch.randint(0, 626, (4, 40), generator=generator)
    warpers, processors = gen_logits(626, top_P=top_p, top_K=top_k, repetition_penalty=penalty)
    expected = logits / 0.3
    for change in (*processors, *warpers):
        expected = change(recent, expected)
    ours = filter_logits(
        logits[None],
        recent[None, :, -16:],
        RowParams(*(torch.tensor(value).reshape(1, 1, 1) for value in (0.3, 1 - top_p, top_k, penalty))),
        eos=torch.full((1, 4, 1), 625),
        eos_forbidden=torch.tensor([[[False]]]),
    )
    assert torch.equal(ours[0], expected)


@pytest.mark.parametrize("pair", ["demo", "taught", pytest.param("full_random", marks=pytest.mark.nightly)], indirect=True)
@pytest.mark.parametrize(("text", "seed"), [("hello there how are you", 1), ("今天天气很好", 2), ("we go 出去走走 now", 3)])
def test_refined_text_is_the_packages(pair, text, seed):
    """The tokens exactly, and the text exactly but for the prompt marks that only random weights draw."""
    manner = RefineParams(
        oral=2,
        laugh=1,
        pause=4,
        sampling=SamplingParams(
            temperature=0.7, repetition_penalty=1.0, seed=seed, seed_mode=SeedMode.UPSTREAM, min_steps=STEPS
        ),
    )
    params = ChatTTS.Chat.RefineTextParams(
        prompt="[oral_2][laugh_1][break_4]",
        manual_seed=seed,
        max_new_token=STEPS,
        min_new_token=STEPS,
        show_tqdm=False,
    )
    theirs = pair.chat._refine_text([pair.tokenizer.pronounced(text)], torch.device("cpu"), params).ids[0]

    async def refine() -> NDArray[np.int64]:
        prompt = pair.tokenizer.refine_prompt(Segment(text, 0, is_last=True), manner, max_steps=STEPS)
        blocks = pair.engine.generate(prompt, manner.sampling, timeout_s=100)
        return np.concatenate([block.codes[:, 0] async for block in blocks])

    ours = asyncio.run(refine())
    np.testing.assert_array_equal(ours, theirs.numpy())
    marks = torch.tensor(sorted(pair.tokenizer._forbidden_ids))
    spoken = theirs[(theirs < pair.chat.tokenizer.break_0_ids) & ~torch.isin(theirs, marks)]
    assert pair.tokenizer.decode_refined(ours) == pair.chat.tokenizer.decode([spoken])[0]
