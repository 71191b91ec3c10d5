"""Times: what is told about the audio of a job, as fields of a reply.

In:    TimedItems, in samples
Out:   lists of segments, breaks, marks, and words or characters, in seconds
Never: a protocol
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

from pipeline.types import Coverage, TimedItem, TimeKind, TimeQuality
from pipeline.voices.voice_names import display_name
from serve.speech.dialogue import DIGITS, dialogue_fields
from serve.speech.job import SpeechJob

LISTS = {TimeKind.SEGMENT: "segments", TimeKind.BREAK: "breaks", TimeKind.MARK: "marks"}

Fields = dict[str, Any]


def times_fields(
    items: Iterable[TimedItem], job: SpeechJob, *, from_s: float = 0.0, from_character: int = 0
) -> dict[str, list[Fields]]:
    """Returns the times that the job asked for, by kind; empty lists are left out.

    Args:
        from_s: what is added to every time [s].
        from_character: what is added to every place in the text.
    """
    lists: dict[str, list[Fields]] = {}
    for item in items:
        if item.kind is not TimeKind.WORD:
            lists.setdefault(LISTS[item.kind], []).append(_fields(item, job, from_s, from_character))
        elif job.timestamps in ("word", "live"):
            lists.setdefault("words", []).append(_fields(item, job, from_s, from_character))
        elif job.timestamps == "char":
            chars = (_fields(character, job, from_s, from_character) for character in characters_of(item))
            lists.setdefault("chars", []).extend(chars)
    return lists


def turns_fields(items: Iterable[TimedItem], job: SpeechJob) -> dict[str, list[Fields]]:
    """Returns when each voice of a dialogue speaks, from its first segment to its last; nothing for a text of one voice.

    Args:
        items: all of the job.
    """
    if job.request.turns:
        return dialogue_fields(items, job)
    segments = [item for item in items if item.kind is TimeKind.SEGMENT]
    if len({item.voice for item in segments}) < 2:
        return {}
    text, rate, turns = job.request.text, job.audio.sample_rate, []
    for voice, run in groupby(segments, attrgetter("voice")):
        turn = list(run)
        source = [turn[0].source[0], turn[-1].source[1]]
        times = {"start": round(turn[0].start / rate, DIGITS), "end": round(turn[-1].stop / rate, DIGITS)}
        speaker = display_name(voice or job.request.voice)
        turns.append({"voice": speaker, "text": text[slice(*source)], "source": source, **times, "quality": "exact"})
    return {"turns": turns}


def coverage_fields(coverage: Coverage) -> Fields:
    """Returns how much of the text was spoken."""
    return {
        "share": round(coverage.share, 4),
        "words": coverage.words,
        "swallowed": coverage.swallowed,
        "repeated": coverage.repeated,
    }


def characters_of(word: TimedItem) -> Iterator[TimedItem]:
    """Yields the characters of a word, which share its time evenly: estimated, unless it is one character."""
    first, stop = word.source
    count = stop - first
    quality = word.quality if count == 1 else TimeQuality.ESTIMATED
    edges = even(word.start, word.stop, count)
    for index in range(count):
        place = (first + index, first + index + 1)
        yield TimedItem(word.kind, edges[index], edges[index + 1], quality, word.segment, place)


def even(start: int, stop: int, count: int) -> list[int]:
    """Returns the count + 1 edges of equal parts of [start, stop)."""
    return [start + (stop - start) * index // max(1, count) for index in range(count + 1)]


def _fields(item: TimedItem, job: SpeechJob, from_s: float, from_character: int) -> Fields:
    rate = job.audio.sample_rate
    text = job.request.text[slice(*item.source)]
    fields: Fields = {"start": round(from_s + item.start / rate, DIGITS), "end": round(from_s + item.stop / rate, DIGITS)}
    source = [place + from_character for place in item.source]
    named: Mapping[TimeKind, Fields] = {
        TimeKind.SEGMENT: {"index": item.segment, "text": text, "source": source, "voice": item.voice},
        TimeKind.MARK: {"name": item.reading, "source": source},
        TimeKind.WORD: {"text": text, "source": source, "segment": item.segment},
        TimeKind.BREAK: {},
    }
    values = {name: value for name, value in named[item.kind].items() if value is not None}
    return {**values, **fields, "quality": item.quality.value}
