"""Subtitles: the text of a job as lines on a screen, from the times of its words.

In:    TimedItems of words and segments, in samples
Out:   SubRip or WebVTT
Owns:  how long a cue and a line may be
Never: a time of its own: a cue begins with its first word and ends with its last; one whose words were all swallowed gets a
       part of its neighbour's time

A cue ends where the voice changes, with a sentence, at a comma or between words, before it has more than two lines or lasts too
long. WebVTT names the voices of a dialogue, and SubRip its speakers where they change. Lengths are those
that broadcasters agree on: 42 letters a line, 16 Chinese characters, 7 seconds.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pipeline.types import TimedItem, TimeKind
from pipeline.voices.voice_names import display_name
from serve.speech.dialogue import turn_at
from serve.speech.job import SpeechJob, SubtitlesIn

LINE = 42
"""widest line; a Chinese character is as wide as WIDE letters"""
LINES = 2
MOST_S = 7.0
BRIEF_S = 0.02  # a cue of less is one whose words the model swallowed
LEAST_S = 0.5  # of such a cue, where its neighbour lasts long enough
WIDE = 42 / 16
_WIDE = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_PIECE = re.compile(r"\s+|[\u3400-\u9fff][\u3000-\u303f\uff00-\uff65]*|[^\s\u3400-\u9fff]+")
_SENTENCE_ENDS = frozenset(".!?。！？…")
_CLAUSE_ENDS = frozenset(",;:，；：、")
CLAUSE_FROM = 0.5  # of a full cue: from there on it ends at a comma


@dataclass(frozen=True, slots=True)
class Cue:
    """Words that are shown together, in seconds."""

    start: float
    end: float
    text: str
    voice: str | None = None
    """who says them; None: the voice of the request"""


def subtitles(items: Sequence[TimedItem], job: SpeechJob) -> str:
    """Returns the subtitles of a job in the format that it asked for."""
    assert job.subtitles is not None
    shown = cues(items, job)
    if job.request.turns and job.subtitles == "srt":
        shown = list(_named(shown))
    return written(shown, job.subtitles)


def cues(items: Sequence[TimedItem], job: SpeechJob) -> list[Cue]:
    """Returns the cues of a text whose words have times; of one without, a cue per segment. Each ends after it begins."""
    return lasting(list(_cues(items, job)))


def lasting(shown: Iterable[Cue]) -> list[Cue]:
    """Returns cues that all last: those without length share the time of the one before them, the first ones of the next."""
    groups: list[list[Cue]] = []  # of each at most one cue lasts
    for cue in shown:
        if not groups or (_lasts(cue) and any(map(_lasts, groups[-1]))):
            groups.append([cue])
        else:
            groups[-1].append(cue)
    return [cue for group in groups for cue in (group if len(group) == 1 and _lasts(group[0]) else _shared(group))]


def _shared(group: list[Cue]) -> Iterator[Cue]:
    silent = sum(not _lasts(cue) for cue in group)
    start, stop = group[0].start, max(cue.end for cue in group)
    part = min(LEAST_S, (stop - start) / (2 * silent)) if silent < len(group) else LEAST_S
    for cue in group:
        end = start + (stop - group[0].start - silent * part if _lasts(cue) else part)
        yield replace(cue, start=start, end=end)
        start = end


def _lasts(cue: Cue) -> bool:
    return cue.end - cue.start >= BRIEF_S


def _cues(items: Sequence[TimedItem], job: SpeechJob) -> Iterator[Cue]:
    kind = TimeKind.WORD if any(item.kind is TimeKind.WORD for item in items) else TimeKind.SEGMENT
    timed = [item for item in items if item.kind is kind]
    text, rate = job.request.text, job.audio.sample_rate
    voices = {item.segment: _speaker(item, job) for item in items if item.kind is TimeKind.SEGMENT}
    stops = [_between(text, *pair) for pair in pairwise(timed)] + [len(text)]
    begin = place = 0
    for index, item in enumerate(timed):
        following = timed[index + 1 : index + 2]
        voice = voices.get(item.segment)
        if following and voices.get(following[0].segment) == voice:
            seconds = (following[0].stop - timed[begin].start) / rate
            longer = text[place : stops[index + 1]]
            if not _ends(text[item.source[1] : stops[index]], text[place : stops[index]], longer, seconds):
                continue
        yield Cue(timed[begin].start / rate, item.stop / rate, " ".join(text[place : stops[index]].split()), voice)
        begin, place = index + 1, stops[index]


def written(shown: Iterable[Cue], kind: SubtitlesIn) -> str:
    """Returns cues as a file of a kind."""
    point = "," if kind == "srt" else "."
    blocks = [] if kind == "srt" else ["WEBVTT\n"]
    for number, cue in enumerate(shown, start=1):
        head = f"{number}\n" if kind == "srt" else ""
        text = "\n".join(_lines(cue.text))
        if kind == "srt":
            text = text.replace("-->", "->")
        else:
            speaker = "" if cue.voice is None else f"<v {html.escape(display_name(cue.voice), quote=False)}>"
            text = speaker + html.escape(text, quote=False)
        blocks.append(f"{head}{_clock(cue.start, point)} --> {_clock(cue.end, point)}\n{text}\n")
    return "\n".join(blocks)


def _speaker(segment: TimedItem, job: SpeechJob) -> str | None:
    """Returns who speaks a segment: of a dialogue the speaker, else the voice if it is not the request's."""
    turns = job.request.turns
    return turns[turn_at(job.request, segment.source[0])].speaker if turns else segment.voice


def _named(shown: Iterable[Cue]) -> Iterator[Cue]:
    """Yields cues that begin with the name of their speaker where it changes, since SubRip has no place for it."""
    before = None
    for cue in shown:
        yield cue if cue.voice == before else replace(cue, text=f"{cue.voice}: {cue.text}")
        before = cue.voice


def _between(text: str, word: TimedItem, following: TimedItem) -> int:
    """Returns where the text of a word ends and that of the following one begins: behind the last space between them."""
    gap = text[word.source[1] : following.source[0]]
    spaces = [at for at, sign in enumerate(gap, start=1) if sign.isspace()]
    return word.source[1] + (spaces[-1] if spaces else len(gap))


def _ends(stop: str, text: str, longer: str, longer_s: float) -> bool:
    """True if a cue ends here.

    Args:
        stop: what stands between its last word and the next one.
        text: of the cue.
        longer: its text with one more word, which would last `longer_s`.
    """
    if not _SENTENCE_ENDS.isdisjoint(stop) or "\n" in stop:
        return True
    too_long = len(_lines(longer)) > LINES or longer_s > MOST_S
    return too_long or (not _CLAUSE_ENDS.isdisjoint(stop) and _width(text) >= CLAUSE_FROM * LINE * LINES)


def _lines(text: str) -> list[str]:
    """Returns a text in lines, as few as hold it."""
    lines, space = [""], ""
    for piece in _PIECE.findall(text):
        if piece.isspace():
            space = " "
        elif lines[-1] and _width(lines[-1] + space + piece) > LINE:
            lines.append(piece)
            space = ""
        else:
            lines[-1] += (space if lines[-1] else "") + piece
            space = ""
    return lines


def _width(text: str) -> float:
    return len(text) + (WIDE - 1) * len(_WIDE.findall(text))


def _clock(seconds: float, point: str) -> str:
    """Returns 00:00:00,000."""
    ms = round(1000 * seconds)
    return f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d}{point}{ms % 1000:03d}"
