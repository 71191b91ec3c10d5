"""Stage timings: how long one reply spent in each stage of the pipeline, and how much work it took there.

In:    one call of the methods below for each answer of a stage
Out:   the entries of Server-Timing, the fields of the log line
Owns:  the StageTimings of the running reply, one per task (ContextVar)
Never: Ray, a client's text
"""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from pipeline.types import Head, Prompt, StepBlock

Fields = dict[str, str | int | float | bool]


@dataclass(slots=True)
class StageTimings:
    """One reply's way through the stages; None: it did not come so far."""

    text_s: float | None = None
    """the answer of the text front end, rewriting included"""
    queue_s: float | None = None
    """the first segment waited for a slot"""
    gpt_s: float | None = None
    """from its slot to its first steps"""
    vocoder_s: float | None = None
    """the first call of the vocoder that returned samples; None where the model decodes what it generates"""
    segments: int = 0
    steps: int = 0
    vocoder_calls: int = 0
    fail_overs: int = 0
    """segments that another replica went on with"""
    repeated_steps: int = 0
    """steps that were generated a second time for it"""
    interrupted_s: float = 0.0
    """from the deaths to the next new step"""
    builds: set[str] = field(default_factory=set)
    """fingerprints of the engines that generated"""
    cache: str = ""
    """where the first segment came from: hit, miss, joined, bypass"""
    finish: dict[str, int] = field(default_factory=dict)
    """why segments ended: how many"""

    def planned(self, segments: int, began: float) -> None:
        """Record an answer of the text front end to a call begun at `began` (time.perf_counter)."""
        self.text_s = (self.text_s or 0.0) + time.perf_counter() - began
        self.segments = segments

    def generated(self, prompt: Prompt, block: StepBlock, began: float) -> None:
        """Record a block of the acoustic model; the refine pass does not count."""
        if block.fingerprint:
            self.builds.add(block.fingerprint)
        if prompt.head is not Head.CODE:
            return
        self.steps += len(block.codes)
        self.vocoder_calls += block.samples is not None and len(block.samples) > 0
        if block.admission is not None and prompt.segment.index == 0:
            self.queue_s = block.admission.waited_s
            self.gpt_s = max(time.perf_counter() - began - block.admission.waited_s, 0.0)
        if block.finish is not None:
            self.finish[block.finish] = self.finish.get(block.finish, 0) + 1

    def decoded(self, samples: int, began: float) -> None:
        """Record a call of the vocoder."""
        self.vocoder_calls += 1
        if self.vocoder_s is None and samples:
            self.vocoder_s = time.perf_counter() - began

    def failed_over(self, repeated_steps: int, interrupted_s: float) -> None:
        """Record that another replica goes on with a segment."""
        self.fail_overs += 1
        self.repeated_steps += repeated_steps
        self.interrupted_s += interrupted_s

    def milliseconds(self) -> dict[str, float]:
        """The stages that were passed, in their order [ms]."""
        stages = {"text": self.text_s, "queue": self.queue_s, "gpt": self.gpt_s, "vocoder": self.vocoder_s}
        return {name: 1000 * took_s for name, took_s in stages.items() if took_s is not None}

    def summary(self) -> Fields:
        """The fields of a log line."""
        seconds = {"text_s": self.text_s, "queue_s": self.queue_s, "gpt_s": self.gpt_s, "vocoder_s": self.vocoder_s}
        return {
            **({"cache": self.cache} if self.cache else {}),
            "segments": self.segments,
            "steps": self.steps,
            "vocoder_calls": self.vocoder_calls,
            **self._fail_overs(),
            **{f"ended_by_{reason}": count for reason, count in sorted(self.finish.items())},
            **{name: round(took_s, 4) for name, took_s in seconds.items() if took_s is not None},
        }

    def _fail_overs(self) -> Fields:
        if not self.fail_overs:
            return {}
        seconds = round(self.interrupted_s, 3)
        return {"fail_overs": self.fail_overs, "repeated_steps": self.repeated_steps, "interrupted_s": seconds}


CURRENT_TIMINGS: ContextVar[StageTimings | None] = ContextVar("chattts_stage_timings", default=None)
"""of the reply the running task works for"""


def current_timings() -> StageTimings:
    """The timings of the reply this task works for; ones that nothing reads where there is no reply."""
    return CURRENT_TIMINGS.get() or StageTimings()
