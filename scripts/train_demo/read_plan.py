"""Read plan: lets the teacher read a plan aloud, in several processes, on a CPU or on a GPU.

In:    a plan; the teacher
Out:   chunks of recordings, aligned with their tokens, step by step
Owns:  the chunks' format, how a recording is cut, the breaths
Never: lexicons

    nice -n 19 python -m scripts.train_demo.read_plan $CHATTTS_HOME/train --processes 2

Of a recording the silence before and after is cut to LEAD_S and TRAIL_S. The teacher's durations run LAG_S behind what is
heard, and count most of a pause to the phone before it: the borders are put where the sound ends.
"""

import argparse
import gzip
import json
import sys
import time
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.spec import SAMPLE_RATE, SAMPLES_PER_STEP
from scripts.train_demo.kokoro import SAMPLES_PER_TICK, Kokoro, fetched_voices
from scripts.train_demo.training import allow_tf32

LEAD_S, TRAIL_S = 0.06, 0.16
SILENT = 0.012  # of the largest magnitude
BREATH_LEVEL = 0.012
LAG_S = 0.035
FRAME = 120  # samples over which loudness is taken
STRETCHED, LONGEST = 3, 4 * SAMPLES_PER_TICK  # sounds before a pause that are put in their places; samples of one, about
CHUNK = 50
PEAK = 0.95
PLAN = "plan.jsonl.gz"


def read(folder: Path, device: str, graph: Path | None, seconds: float, first: int, step: int) -> None:
    """Reads every step-th chunk from the first on, unless it is there, and begins none when the time is over."""
    torch.set_num_threads(1)
    allow_tf32()
    ends, teacher = time.monotonic() + seconds, Kokoro(folder / "kokoro", device, graph)
    with gzip.open(folder / PLAN, "rt", encoding="utf-8") as file:
        head = json.loads(next(file))
        for number, lines in enumerate(iter(lambda: list(islice(file, CHUNK)), [])):
            path = folder / "chunks" / f"{number:05d}.pt"
            if number % step != first or path.exists():
                continue
            if time.monotonic() > ends:
                return
            ready = [_recorded(teacher, json.loads(line), head) for line in lines]
            _write(path, ready)
            seconds_read = sum(len(recording["samples"]) for recording in ready) / SAMPLE_RATE
            print(f"chunk {number}: {len(ready)} recordings, {seconds_read / 60:.1f} minutes", flush=True)


def _recorded(teacher: Kokoro, entry: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    spoken = teacher.speak_numbers(entry["ids"], entry["voices"], entry["pace"])
    audio, ticks = torch.from_numpy(spoken.samples).float() / 32767, torch.from_numpy(spoken.ticks).long()
    return aligned(audio, ticks, entry, head)


def aligned(audio: Tensor, ticks: Tensor, entry: dict[str, Any], head: dict[str, Any]) -> dict[str, Any]:
    """Cuts a recording, and says which token and which sound each of its steps has.

    Args:
        audio: (n,) samples.
        ticks: (phones + 2,) durations, with those of the silence before and after.
        head: the plan's tables: the numbers of the tokens that are pauses, and of the one that gets a breath.
    """
    places, sounds, counts = torch.tensor(entry["spans"]).T
    ends = (ticks[1:-1].cumsum(0)[counts.cumsum(0) - 1] + ticks[0]) * SAMPLES_PER_TICK - round(LAG_S * SAMPLE_RATE)
    ends[-1] = len(audio)
    is_pause = torch.isin(torch.tensor(entry["tokens"])[places], torch.tensor(head["pauses"]))
    _settle(audio, ends, is_pause)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
    for place in torch.isin(torch.tensor(entry["tokens"])[places], torch.tensor(head["breath"])).nonzero().flatten().tolist():
        _breathe(audio[starts[place] : ends[place]])
    begin, end = _cut(audio)
    steps = -(-(end - begin) // SAMPLES_PER_STEP)
    padded = torch.zeros(steps * SAMPLES_PER_STEP)
    padded[: end - begin] = audio[begin:end]
    middles = begin + (torch.arange(steps) * 2 + 1) * (SAMPLES_PER_STEP // 2)
    index = torch.searchsorted(ends, middles, right=True).clamp(max=len(ends) - 1)
    token = places[index]
    token_starts, token_ends = (
        torch.full((int(places.max()) + 1,), edge).scatter_reduce(0, places, values, how)
        for edge, values, how in ((1 << 40, starts, "amin"), (0, ends, "amax"))
    )
    first, last = token_starts[token].clamp(min=begin), token_ends[token].clamp(max=end)
    inside = ((middles - first) / (last - first).clamp(min=1)).clamp(0, 1)
    return {
        "text": entry["text"],
        "tokens": torch.tensor(entry["tokens"], dtype=torch.int16),
        "shares": torch.tensor(entry["shares"]),
        "samples": (padded.clamp(-PEAK, PEAK) * 32767).round().to(torch.int16),
        "spoken": (token + inside - 0.5).half(),
        "sound": sounds[index].to(torch.int16),
    }


def _settle(audio: Tensor, ends: Tensor, is_pause: Tensor) -> None:
    """Moves the borders before each pause to where the sound ends."""
    frames = audio[: len(audio) // FRAME * FRAME].reshape(-1, FRAME).square().mean(1).sqrt()
    is_silent = (frames < 2 * SILENT * audio.abs().max()).tolist()
    for pause in is_pause.nonzero().flatten().tolist():
        first = max(0, pause - STRETCHED)
        while bool(is_pause[first:pause].any()):
            first += 1
        if first == pause:
            continue
        begin, at = int(ends[first - 1]) if first else 0, int(ends[pause - 1]) // FRAME
        while at * FRAME > begin and at <= len(is_silent) and is_silent[at - 1]:
            at -= 1
        sounding = at * FRAME - begin
        if sounding > 0 and at * FRAME < ends[pause - 1]:
            lengths = torch.diff(ends[first:pause], prepend=torch.tensor([begin])).clamp(max=LONGEST).float()
            ends[first:pause] = begin + (lengths.cumsum(0) / lengths.sum() * sounding).long()


def _cut(audio: Tensor) -> tuple[int, int]:
    """Returns where a recording begins and ends, with a little silence on both sides."""
    loud = (audio.abs() > SILENT * audio.abs().max()).nonzero().flatten()
    begin, end = int(loud[0] - LEAD_S * SAMPLE_RATE), int(loud[-1] + TRAIL_S * SAMPLE_RATE)
    return max(0, begin), min(len(audio), end)


def _breathe(audio: Tensor) -> None:
    """Lays soft noise that swells and fades over a pause."""
    count = len(audio)
    noise = torch.nn.functional.avg_pool1d(torch.randn(1, 1, count + 4), 5, 1)[0, 0]
    audio += BREATH_LEVEL * 2 * noise * torch.linspace(0, torch.pi, count).sin().clamp(min=0) ** 2


def _write(path: Path, ready: list[dict[str, Any]]) -> None:
    draft = path.with_suffix(".draft")
    torch.save(
        {
            "texts": [recording["text"] for recording in ready],
            "shares": torch.stack([recording["shares"] for recording in ready]),
            **{name: torch.cat([recording[name] for recording in ready]) for name in ("tokens", "samples", "spoken", "sound")},
            "token_counts": torch.tensor([len(recording["tokens"]) for recording in ready]),
            "step_counts": torch.tensor([len(recording["sound"]) for recording in ready]),
        },
        draft,
    )
    draft.rename(path)


def main() -> None:
    """Reads in several processes."""
    parser = argparse.ArgumentParser(description="Let the neural teacher read a plan; goes on where it was stopped.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graph", type=Path, help="the teacher's file; default: that of the installed packages")
    parser.add_argument("--seconds", type=float, default=1e9)
    args = parser.parse_args()
    (args.folder / "chunks").mkdir(parents=True, exist_ok=True)
    fetched_voices(args.folder / "kokoro")  # once, before several ask for them
    readers = [
        get_context("spawn").Process(
            target=read, args=(args.folder, args.device, args.graph, args.seconds, first, args.processes), daemon=True
        )
        for first in range(args.processes)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    sys.exit(max(reader.exitcode or 0 for reader in readers))


if __name__ == "__main__":
    main()
