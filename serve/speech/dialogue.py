"""Dialogue: when each speaker of a dialogue speaks, and how loud its voices are.

In:    TimedItems of segments, in samples; gains of voices
Out:   TurnTimes; fields of a reply; a job whose voices are levelled
Never: a time that is not counted in samples
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.types import SynthesisRequest, TimedItem, TimeKind, Turn
from pipeline.voices.voice_names import display_name
from serve.speech.job import SpeechJob

DIGITS = 6  # of a second; more than a sample of any rate needs


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """A turn and its place in the audio."""

    index: int
    turn: Turn
    start: int
    """its first sample"""
    stop: int
    """behind its last sample"""


def turn_times(items: Iterable[TimedItem], request: SynthesisRequest) -> list[TurnTimes]:
    """Returns the turns that are spoken, from the first segment of each to its last.

    Args:
        items: all of the reply.
    """
    places: dict[int, tuple[int, int]] = {}
    for item in items:
        if item.kind is TimeKind.SEGMENT:
            index = turn_at(request, item.source[0])
            places[index] = (places.get(index, (item.start, 0))[0], item.stop)
    return [TurnTimes(index, request.turns[index], *place) for index, place in sorted(places.items())]


def turn_at(request: SynthesisRequest, character: int) -> int:
    """Returns the index of the turn of a character of the text."""
    return bisect_right(request.turns, character, key=lambda turn: turn.source[0]) - 1


def dialogue_fields(items: Iterable[TimedItem], job: SpeechJob) -> dict[str, list[dict[str, Any]]]:
    """Returns when each turn is heard, and how long each speaker speaks, in seconds."""
    request, rate = job.request, job.audio.sample_rate
    turns: list[dict[str, Any]] = []
    spoken: dict[str, dict[str, Any]] = {}
    for at in turn_times(items, request):
        turn = at.turn
        times = {"start": round(at.start / rate, DIGITS), "end": round(at.stop / rate, DIGITS), "quality": "exact"}
        labels = {"speaker": turn.speaker, "voice": display_name(turn.voice)}
        text = request.text[slice(*turn.source)]
        turns.append({"index": at.index, **labels, "text": text, "source": list(turn.source), **times})
        speaker = spoken.setdefault(turn.speaker, {**labels, "turns": 0, "samples": 0})
        speaker["turns"] += 1
        speaker["samples"] += at.stop - at.start
    speakers = [{**speaker, "speaks_s": round(speaker.pop("samples") / rate, DIGITS)} for speaker in spoken.values()]
    return {"turns": turns, "speakers": speakers}


def levelled(job: SpeechJob, gains_db: Mapping[str, float]) -> SpeechJob:
    """Returns a job whose passages have the gains of their voices on top of their own."""
    passages = tuple(
        replace(passage, prosody=replace(passage.prosody, gain_db=passage.prosody.gain_db + gains_db.get(turn.voice, 0.0)))
        for passage, turn in zip(job.request.passages, job.request.turns, strict=True)
    )
    return replace(job, request=replace(job.request, passages=passages))
