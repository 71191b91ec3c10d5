"""Upstream: the ChatTTS package's own decode loop on the same device, beside this engine's figures.

In:    a checkpoint's folder, a device; the figures of the sections before
Out:   figures and aims
Owns:  nothing
Never: a need for the package: without it the section says so
"""

import importlib
from pathlib import Path

import numpy as np
import torch

from pipeline.spec import STEPS_PER_SECOND
from scripts.bench.record import step_figure
from scripts.evaluate.gpu_check.report import Report, seconds_each
from scripts.evaluate.gpu_check.speech import lengths, speech_figure

BATCHES = 1000  # static batches over which the longest row is averaged


def measure_upstream(report: Report, root: Path, device: str, steps: int) -> None:
    """Measures the ChatTTS package's own decode loop, alone and as one batch, if it is installed."""
    try:
        upstream = importlib.import_module("scripts.bench.upstream")
        package = importlib.import_module("ChatTTS")
    except ImportError as missing:
        report.figure("upstream", None, f"left out: {missing}")
        return
    chat = upstream.load_chat(root, device)
    found = {}
    for batch in (1, 32, 64) if device == "cuda" else (1,):
        params = package.Chat.InferCodeParams(max_new_token=steps, min_new_token=steps, show_tqdm=False)
        texts = [f"hello there how are you today {number}" for number in range(batch)]

        def infer(texts: list[str] = texts, params: object = params) -> None:
            list(chat._infer_code(texts, False, torch.device(device), True, params))
            if device == "cuda":
                torch.cuda.synchronize()

        found[batch] = seconds_each(infer, 2) / steps
    shown = ", ".join(f"batch of {batch}: {1e3 * seconds:.1f} ms" for batch, seconds in found.items())
    report.figure("upstream_step_s", found, f"a step of {shown}")
    _compare_with_static_batches(report, found)
    ours = report.figure_of(step_figure(1))
    if isinstance(ours, dict):
        report.aim("step rate of one sequence, this engine / ChatTTS", found[1] / (ours["step_ms"] / 1e3), 18, at_least=True)


def _compare_with_static_batches(report: Report, step_s: dict[int, float]) -> None:
    """Compares speech at the batch's size with static batches, which run as long as their longest row.

    Only the decode steps of the package are timed: its vocoder and its prompts would make it slower still.
    """
    batch = max(step_s)
    rows = lengths(BATCHES * batch, np.random.default_rng(0)).reshape(BATCHES, batch)
    rate = float(rows.sum() / STEPS_PER_SECOND / (rows.max(axis=1).sum() * step_s[batch]))
    report.figure("upstream_static_audio_s_per_s", rate, f"{rate:.1f} audio-s/s in batches of {batch}, decode steps alone")
    ours = report.figure_of(speech_figure(batch))
    if ours is not None:
        name = f"audio per second at {batch} in flight, this engine / ChatTTS in static batches"
        report.aim(name, ours["audio_s_per_s"] / rate, 40, at_least=True)
