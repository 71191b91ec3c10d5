"""Quality gate: compares fast number formats with float32. `python -m scripts.evaluate.quality_gate CHECKPOINT`

In:    a checkpoint
Out:   a table, one JSON line; exit code 1 if a format fails
Owns:  one decoder per format, one after another
Never: the GPU kernels (scripts/evaluate/gpu_check)

Every format gets the same history, step for step: the codes that float32 has drawn. So one early difference does not count
again in every later step, and all formats answer the same question:

  hidden error   |state - float32's state| / |float32's state|, the mean over all steps
  argmax         how often the likeliest code of a codebook is float32's
  top 20         how many of the 20 likeliest codes are among float32's
  moved          probability that lies elsewhere than float32's (total variation), at the default temperature

An 8-bit format passes if it moves at most MOST_TIMES as much as torch's bfloat16, the usual format. The limit of weights of 4
bits, MOST_TIMES_4, is exceeded by damage only: whether they can be heard is for the judge to say (intelligibility.py). The
GPU's formats are judged by their counterparts in torch, so no GPU is needed.
"""

import argparse
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pipeline.checkpoint.in_torch import in_torch
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.weights import Checkpoint, open_checkpoint
from pipeline.engine import tensor_cache
from pipeline.errors import CheckpointError
from pipeline.model.cpu.native import Cache, NativeDecoder
from pipeline.model.cpu.packing import Weights
from pipeline.model.embedding import Embedding
from pipeline.model.gpt import ActiveExtent, Gpt, KeysValues
from pipeline.model.linear import QuantisedLinear
from pipeline.model.sampling import RowParams, draw, filter_logits
from pipeline.model.uniforms import counter_uniforms
from pipeline.native.compiler import NativeUnavailable
from pipeline.paths import cache_home
from pipeline.text.tokenizer import PromptTokenizer
from pipeline.types import Head, Prompt, SamplingParams, Segment, Voice

logger = logging.getLogger(__name__)

SENTENCE = "the quick brown fox jumps over the lazy dog and then it sleeps under a tree"


@dataclass(frozen=True, slots=True)
class Way:
    """How a step is computed: number formats and implementation."""

    dtype: torch.dtype
    native: Weights | None = None
    """weights of native decoding on a CPU"""
    weights: str = "dtype"
    """weights on a GPU"""
    kv: str = "dtype"

    @property
    def most_times(self) -> float | None:
        """How many times as much as torch's bfloat16 it may move; None: it is not judged."""
        if self.native == "int4":
            return MOST_TIMES_4
        return MOST_TIMES if self.native == "int8" or {self.weights, self.kv} != {"dtype"} else None


EXACT, YARDSTICK = "float32", "bfloat16, torch"
WAYS = {
    EXACT: Way(torch.float32),
    YARDSTICK: Way(torch.bfloat16),
    "bfloat16, native": Way(torch.bfloat16, native="bfloat16"),
    "weights int8, native": Way(torch.bfloat16, native="int8"),
    "kv int8, native": Way(torch.bfloat16, native="bfloat16", kv="int8"),
    "weights and kv int8, native": Way(torch.bfloat16, native="int8", kv="int8"),
    "weights int4, native": Way(torch.bfloat16, native="int4"),
    "weights int4 and kv int8, native": Way(torch.bfloat16, native="int4", kv="int8"),
    "weights int8, GPU": Way(torch.bfloat16, weights="int8"),
    "kv int8, GPU": Way(torch.bfloat16, kv="int8"),
    "weights and kv int8, GPU": Way(torch.bfloat16, weights="int8", kv="int8"),
}
MOST_TIMES, MOST_TIMES_4 = 4.0, 32.0
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Agreement:
    """One format compared with float32; means over steps and codebooks."""

    hidden_error: float
    argmax: float
    top_20: float
    moved: float


class NativeGpt:
    """The native decoder with the interface of Gpt; the tensors of its cache are changed in place."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self.decoder = decoder

    def __call__(
        self, x: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, cache: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Advances slots: several by one position each, or one by consecutive positions."""
        arrays = tuple(map(as_array, cache))
        return torch.from_numpy(self.decoder(as_array(x), as_array(slots), as_array(positions), arrays))

    def decode(self, x: torch.Tensor, positions: torch.Tensor, cache: KeysValues, extent: ActiveExtent) -> torch.Tensor:
        """Advances every slot of the extent by one position, as Gpt.decode does."""
        used = slice(extent.slots)
        return self(x[used], torch.arange(extent.slots), positions[used], cache.tensors)

    def prefill(self, x: torch.Tensor, slots: torch.Tensor, last: torch.Tensor, cache: KeysValues) -> torch.Tensor:
        """Computes prompts, as Gpt.prefill does."""
        prompts = [as_array(prompt[: end + 1]) for prompt, end in zip(x, last.tolist(), strict=True)]
        return torch.from_numpy(self.decoder.prefill(prompts, slots.tolist(), tuple(map(as_array, cache.tensors))))

    def cache(self, *tensors: torch.Tensor) -> Cache:
        """Returns the cache as decode.cpp takes it."""
        return self.decoder.cache(*map(as_array, tensors))


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns an array of the same memory; bfloat16 becomes its bits."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    array: NDArray[Any] = tensor.numpy()
    return array


class Stepper:
    """Decodes in one format, one sequence at a time."""

    def __init__(self, checkpoint: Checkpoint, way: str, positions: int) -> None:
        how, spec = WAYS[way], checkpoint.gpt_spec
        self._gpt: Gpt | NativeGpt
        if how.native is None:
            self._gpt = Gpt(
                in_torch(checkpoint.gpt()),
                spec,
                positions=positions,
                rows=1,
                device=CPU,
                dtype=how.dtype,
                product=QuantisedLinear if how.weights == "int8" else None,
            )
        else:
            threads = torch.get_num_threads()
            self._gpt = NativeGpt(
                NativeDecoder(checkpoint.gpt(), spec, positions=positions, rows=1, weights=how.native, threads=threads)
            )
        self.embedding = Embedding(in_torch(checkpoint.embed()), device=CPU)
        self._cache = tensor_cache.zeros(spec, 1, positions, how.dtype, how.kv, CPU)
        self._extent = ActiveExtent(1, positions)

    def read(self, prompt: Prompt) -> torch.Tensor:
        """Returns the state after the prompt, (1, width)."""
        ids, mask = torch.from_numpy(prompt.ids), torch.from_numpy(prompt.text_mask)
        x = self.embedding.embed_prompt(ids, mask, None, None)[None]
        return self._gpt.prefill(x, torch.tensor([0]), torch.tensor([len(ids) - 1]), self._cache)

    def step(self, codes: torch.Tensor, position: int) -> torch.Tensor:
        """Returns the state after one more step of codes (1, 4): (1, width)."""
        return self._gpt.decode(self.embedding.embed_codes(codes), torch.tensor([position]), self._cache, self._extent)


def own_history(stepper: Stepper, prompt: Prompt, steps: int, seed: int) -> torch.Tensor:
    """Returns the codes (steps, 4) drawn with the default sampling values."""
    sampling, vocab = SamplingParams(seed=seed), stepper.embedding.code_vocab
    values = (sampling.temperature, 1 - sampling.top_p, sampling.top_k, sampling.repetition_penalty)
    params = RowParams(*(torch.tensor(value).reshape(1, 1, 1) for value in values))
    uniforms = torch.from_numpy(counter_uniforms(sampling, Head.CODE, 0, steps))
    recent, eos = torch.full((1, 4, 16), vocab), torch.full((1, 4, 1), vocab - 1)
    hidden, drawn = stepper.read(prompt), []
    for step in range(steps):
        logits = stepper.embedding.code_logits(hidden)
        filtered = filter_logits(logits, recent, params, eos=eos, eos_forbidden=torch.ones(1, 1, 1, dtype=torch.bool))
        codes = draw(filtered, uniforms[step : step + 1], torch.ones_like(filtered), torch.zeros(1, 1, dtype=torch.bool))
        recent = torch.cat([recent[..., 1:], codes.unsqueeze(-1)], -1)
        drawn.append(codes)
        hidden = stepper.step(codes, len(prompt.ids) + step)
    return torch.cat(drawn)


def states(stepper: Stepper, prompt: Prompt, history: torch.Tensor) -> torch.Tensor:
    """Returns the states along a given history: (steps + 1, width)."""
    first = stepper.read(prompt)
    rest = [stepper.step(codes[None], len(prompt.ids) + step) for step, codes in enumerate(history)]
    return torch.cat([first, *rest])


def agreement(embedding: Embedding, hidden: torch.Tensor, exact: torch.Tensor) -> Agreement:
    """Compares states (N, width) with float32's."""
    ours, theirs = embedding.code_logits(hidden), embedding.code_logits(exact)  # (N, 4, V)
    top = [logits.topk(20, -1).indices for logits in (ours, theirs)]
    shared = (top[0].unsqueeze(-1) == top[1].unsqueeze(-2)).any(-1).float().mean()
    temperature = SamplingParams().temperature
    moved = ((ours / temperature).softmax(-1) - (theirs / temperature).softmax(-1)).abs().sum(-1) / 2
    return Agreement(
        hidden_error=float(((hidden - exact).norm(dim=-1) / exact.norm(dim=-1)).mean()),
        argmax=float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
        top_20=float(shared),
        moved=float(moved.mean()),
    )


def measure(root: Path, *, texts: int, steps: int) -> dict[str, Agreement]:
    """Compares every format with float32, as far as it runs on this machine."""
    checkpoint, tokenizer = open_checkpoint(root), PromptTokenizer(root, max_prompt=256)
    prompts = [
        tokenizer.code_prompt(
            Segment(" ".join(np.random.default_rng(number).permutation(SENTENCE.split())), 0, is_last=True),
            Voice("none", None),
            speed_token=5,
            max_steps=steps,
        )
        for number in range(texts)
    ]
    positions = max(len(prompt.ids) for prompt in prompts) + steps
    with torch.inference_mode():
        reference = Stepper(checkpoint, EXACT, positions)
        histories = [own_history(reference, prompt, steps, seed) for seed, prompt in enumerate(prompts)]
        every = list(zip(prompts, histories, strict=True))
        exact = torch.cat([states(reference, *history) for history in every])
        results = {}
        for way in tuple(WAYS)[1:]:
            try:
                stepper = Stepper(checkpoint, way, positions)
            except NativeUnavailable as reason:
                logger.warning("%s is left out: %s", way, reason)
                continue
            results[way] = agreement(reference.embedding, torch.cat([states(stepper, *history) for history in every]), exact)
    return results


def passes(results: dict[str, Agreement]) -> bool:
    """True if every format of fewer bits is near enough to float32."""
    limits = {way: WAYS[way].most_times for way in results}
    return all(results[way].moved <= times * results[YARDSTICK].moved for way, times in limits.items() if times)


def main() -> int:
    """Measures every format; exit code 1 if one fails or there is no such checkpoint."""
    parser = argparse.ArgumentParser(description="Compare decoding of fewer bits with float32.")
    parser.add_argument("checkpoint", nargs="?", default="demo", help="demo, full-random ... or a folder")
    parser.add_argument("--texts", type=int, default=4, choices=range(1, 65), metavar="1..64")
    parser.add_argument("--steps", type=int, default=64, choices=range(1, 1025), metavar="1..1024", help="steps per text")
    args = parser.parse_args()
    console = Console(stderr=True)
    try:
        results = measure(resolve(args.checkpoint, cache_home()), texts=args.texts, steps=args.steps)
    except CheckpointError as error:
        console.print(str(error), style="red")
        return 1
    table = Table("way", "hidden error", "argmax", "top 20", "moved", title=f"beside float32, {args.checkpoint}")
    for way, row in results.items():
        table.add_row(way, f"{row.hidden_error:.2%}", f"{row.argmax:.1%}", f"{row.top_20:.1%}", f"{row.moved:.2%}")
    console.print(table)
    verdict = passes(results)
    summary = "every format is within its limit" if verdict else "a format is beyond its limit"
    console.print(f"{summary}: {MOST_TIMES:g} times what torch's bfloat16 moves for 8 bits, {MOST_TIMES_4:g} times for 4")
    figures = {way: {name: getattr(row, name) for name in row.__slots__} for way, row in results.items()}
    print(json.dumps({"checkpoint": args.checkpoint, "passes": verdict, "ways": figures}))
    return 0 if verdict else 1


if __name__ == "__main__":
    sys.exit(main())
