"""Vocoder: the samples of the device against those of the CPU, alone and beside neighbours; the time of a call.

In:    a checkpoint, a device
Out:   promises and figures
Owns:  nothing
Never: the engine
"""

from contextlib import closing
from functools import partial

import numpy as np

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.types import HiddenWindow
from pipeline.vocoder.vocoder import Vocoder
from pipeline.vocoder.windowed.windows import Schedule
from scripts.evaluate.gpu_check.report import Report, seconds_each

SAMPLE_TOLERANCE = 1e-3


def check_vocoder(report: Report, checkpoint: Checkpoint, device: str) -> None:
    """Checks for the same samples as on the CPU and the same bits beside any neighbours, and times a call."""
    rows, times = (8, 10) if device == "cuda" else (2, 1)
    settings = {"method": "windows", "chunk_steps": (8, 48), "rows": rows}
    windows = [_window(number, checkpoint.gpt_spec.width, VocoderConfig.model_validate(settings)) for number in range(rows)]
    with closing(Vocoder(VocoderConfig.model_validate(settings), checkpoint)) as vocoder:
        expected = vocoder.decode_batch(windows)
    for matmul in ("float32", "tf32") if device == "cuda" else ("float32",):
        config = VocoderConfig.model_validate(settings | {"device": device, "matmul": matmul})
        with closing(Vocoder(config, checkpoint)) as vocoder:
            vocoder.warm_up()
            together = vocoder.decode_batch(windows)
            alone = [vocoder.decode_batch([window])[0] for window in windows]
            calls = {
                count: seconds_each(partial(vocoder.decode_batch, windows[:count]), times) * 1e3
                for count in (1, 2, 4, 8)[: rows.bit_length()]
            }
        error = max(float(np.abs(one - other).max()) for one, other in zip(expected, together, strict=True))
        noise_db = 20 * np.log10(
            np.linalg.norm(np.concatenate(expected))
            / max(float(np.linalg.norm(np.concatenate(expected) - np.concatenate(together))), 1e-30)
        )
        if matmul == "float32":
            report.promise("samples on the device = on the CPU", error <= SAMPLE_TOLERANCE, f"largest difference {error:.1e}")
        equal = sum(one.tobytes() == other.tobytes() for one, other in zip(alone, together, strict=True))
        report.promise(
            f"{matmul}: a window alone = beside others", equal == len(windows), f"{equal} of {len(windows)} bit-equal"
        )
        shown = ", ".join(f"{count}: {milliseconds:.2f}" for count, milliseconds in calls.items())
        report.figure(
            f"vocoder_{matmul}",
            {"call_ms": calls, "largest_error": error, "signal_to_error_db": float(noise_db)},
            f"ms per call of n windows of 48 steps: {shown}; {noise_db:.0f} dB over the difference to the CPU",
        )


def _window(number: int, width: int, config: VocoderConfig) -> HiddenWindow:
    """Returns a full window of random states, which follow from `number`."""
    steps, body = Schedule(config.chunks(incremental=False), config.look_ahead).shapes[-1]
    frames = np.random.default_rng(number).standard_normal((steps, width)).astype(np.float32)
    start = config.look_ahead
    return HiddenWindow(frames, 0, steps, start, start + body, is_last=False)
