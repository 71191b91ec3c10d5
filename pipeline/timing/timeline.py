"""Timeline: the times of one reply, and how much of its audio may leave before the next of them is known.

In:    the steps of each segment; where it begins and ends in the audio; how many samples exist
Out:   TimedItems, none of them later than the samples it describes unless they are live; Coverage
Owns:  the words of the present segment that have not been told
Never: samples; a time that depends on how steps or samples were grouped, or on when they came; to take back what it has said

Segments and breaks are counted in samples: exact. A word begins where the model begins to look at its tokens. It is told as
soon as its end is decided and its audio exists, and the audio from its beginning on waits for that; for live times only while
the listener is ahead. Where no head of the model follows the text, the words of a segment share its time by their lengths, so
its audio waits until the segment has ended.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.protocols import TextFollower
from pipeline.spec import SAMPLES_PER_STEP
from pipeline.takes.coverage import coverage_of
from pipeline.text.segment import letter_weight
from pipeline.timing.follow import GROUP
from pipeline.types import (
    TIMES_OF_WORDS,
    Coverage,
    Followed,
    Mark,
    Prompt,
    Segment,
    SpokenWord,
    StepBlock,
    SynthesisRequest,
    TimeDetail,
    TimedItem,
    TimeKind,
    TimeQuality,
)

LIVE_STEPS = 2 * GROUP
"""before live times are sought: the first audio has the cores for itself until then"""
LEAD_S = 0.3
"""that a listener is ahead before audio waits for live times"""

Place = Callable[[int], int]
"""place in a segment, in samples as the vocoder made them -> place in the reply, in its samples"""


@dataclass(slots=True, eq=False)
class _Segment:
    """What is known of one segment."""

    prompt: Prompt
    words: Sequence[SpokenWord]
    began: int
    """in the reply [samples]"""
    place: Place
    codes: list[NDArray[np.int64]] = field(default_factory=list)
    followed: Followed | None = None
    is_followed: bool = True
    """the follower has not given it up"""
    num_told: int = 0
    """words that have been told"""
    told_until: int = 0
    """where the last of them ends in the reply [samples]"""

    def extend(self, followed: Followed | None) -> None:
        """Takes an answer of the follower: what an earlier one decided stays, whoever gave it."""
        if followed is not None and self.followed is not None:
            path = np.concatenate([self.followed.path, followed.path[len(self.followed.path) :]])
            followed = Followed(np.maximum.accumulate(path), followed.looked)
        self.followed = followed

    @property
    def tokens(self) -> tuple[int, int]:
        """The positions of its words and of the signs behind them, to the end of the text."""
        return self.words[0].tokens[0], int(self.prompt.text_mask.sum())

    def step(self, token: int) -> int | None:
        """Returns the first step at a token or behind it; None: not decided yet."""
        assert self.followed is not None
        path = self.followed.path
        return int(np.searchsorted(path, token)) if len(path) and path[-1] >= token else None


class Timeline:
    """Collects the times of one request."""

    def __init__(self, request: SynthesisRequest, words: Sequence[Sequence[SpokenWord]], follower: TextFollower | None) -> None:
        """
        Args:
            words: of each segment, in order; empty unless the request asks for them.
            follower: None: no attention is followed, so words are estimated.
        """
        self.coverage: Coverage | None = None
        """of the segments that were followed to their end; None: of none"""
        self._is_on = request.times is not TimeDetail.OFF
        self._words = words if request.times in TIMES_OF_WORDS else ()
        self._is_live = request.times is TimeDetail.LIVE
        self._began_s: float | None = None  # when the first samples left
        self._follower = follower
        self._present: _Segment | None = None
        self._released = 0  # samples that have left
        self._ended: list[TimedItem] = []  # that are ready
        self._marks = list(request.marks)  # that have no time yet
        self._rate = request.audio.sample_rate

    def begin(
        self, prompt: Prompt, steps: AsyncGenerator[StepBlock, None], ended: int, began: int, place: Place
    ) -> AsyncGenerator[StepBlock, None]:
        """The next segment begins in the audio. Returns its steps, which are followed as they are read.

        Args:
            ended: where the segment before it ended [samples of the reply].
            began: where it begins; all between is silence that the text asks for.
        """
        if not self._is_on:
            return steps
        self._end(ended, began, prompt.segment)
        index = prompt.segment.index
        segment = _Segment(prompt, self._words[index] if index < len(self._words) else (), began, place)
        self._present = segment
        can_follow = bool(segment.words) and all(start < stop for start, stop in (word.tokens for word in segment.words))
        return self._watch(segment, steps, self._follower) if can_follow and self._follower is not None else steps

    async def _watch(
        self, segment: _Segment, steps: AsyncGenerator[StepBlock, None], follower: TextFollower
    ) -> AsyncGenerator[StepBlock, None]:
        following: asyncio.Task[None] | None = None
        least = LIVE_STEPS if self._is_live else 0
        try:
            async with aclosing(steps):
                async for block in steps:
                    segment.codes.append(block.codes)
                    ended = block.finish is not None
                    if following is not None and (ended or following.done()):
                        await following
                        following = None
                    is_due = block.stop >= least and block.first_step // GROUP < block.stop // GROUP
                    if ended or (following is None and is_due):
                        following = asyncio.create_task(self._follow(segment, follower, ended=ended))
                    if following is not None and (ended or not self._is_live or self._is_ahead):
                        await following
                    yield block
        finally:
            if following is not None:
                following.cancel()

    async def _follow(self, segment: _Segment, follower: TextFollower, *, ended: bool) -> None:
        """Follows a segment as far as its steps are known, unless the follower has given it up."""
        if not segment.is_followed:
            return
        codes = np.concatenate(segment.codes)
        segment.extend(await follower.follow(segment.prompt, codes, segment.tokens, ended=ended))
        segment.is_followed = segment.followed is not None
        if ended and segment.followed is not None:
            coverage = coverage_of(segment.words, segment.followed)
            self.coverage = coverage if self.coverage is None else self.coverage + coverage

    @property
    def _is_ahead(self) -> bool:
        """True if nobody misses audio that waits for live times."""
        return self._began_s is not None and self._released / self._rate - (time.monotonic() - self._began_s) > LEAD_S

    def finish(self, ended: int, stop: int) -> None:
        """The last segment ended, and the reply stops, with silence between the two if the text asks for it."""
        if self._is_on:
            self._end(ended, stop)

    def take(self, num_samples: int) -> tuple[int, tuple[TimedItem, ...]]:
        """Returns how many samples may leave, and the items that leave before them.

        Args:
            num_samples: samples of the reply that exist.
        """
        segment, leave = self._present, num_samples
        if segment is not None and segment.num_told < len(segment.words):
            leave = segment.began if segment.followed is None else self._tell(segment, num_samples)
        if self._is_live and not self._is_ahead:
            leave = num_samples
        items, self._ended = tuple(self._ended), []
        self._released = max(self._released, min(leave, num_samples))
        if self._released and self._began_s is None:
            self._began_s = time.monotonic()
        return self._released, items

    def _tell(self, segment: _Segment, num_samples: int) -> int:
        """Tells the words that are decided and whose audio exists; returns where the next one begins, or `num_samples`."""
        while segment.num_told < len(segment.words):
            first, stop = segment.words[segment.num_told].tokens
            start_step, stop_step = segment.step(first), segment.step(stop)
            if start_step is None:
                assert segment.followed is not None
                return segment.place(SAMPLES_PER_STEP * len(segment.followed.path))
            start = segment.place(SAMPLES_PER_STEP * start_step)
            end = num_samples + 1 if stop_step is None else segment.place(SAMPLES_PER_STEP * stop_step)
            if end > num_samples:
                return start
            self._put(_word(segment, start, end, TimeQuality.ATTENTION))
        return num_samples

    def _put(self, word: TimedItem) -> None:
        """A word is ready, and the marks before it."""
        while self._marks and self._marks[0].position <= word.source[0]:
            self._mark(self._marks.pop(0), word.start, word.quality, word.segment)
        self._ended.append(word)

    def _mark(self, mark: Mark, at: int, quality: TimeQuality, segment: int) -> None:
        place = (mark.position, mark.position)
        self._ended.append(TimedItem(TimeKind.MARK, at, at, quality, segment, place, mark.name))

    def _end(self, ended: int, stop: int, following: Segment | None = None) -> None:
        """The present segment ended; silence goes before the following one, which begins at `stop`. None: the end."""
        segment, self._present = self._present, None
        index = 0
        if segment is not None:
            index = segment.prompt.segment.index + 1
            for word in _rest(segment, ended):
                self._put(word)
            self._ended.append(_whole(segment, ended))
        if stop > ended:
            self._ended.append(TimedItem(TimeKind.BREAK, ended, stop, TimeQuality.EXACT, index))
        while self._marks and (following is None or self._marks[0].position <= following.source[0]):
            mark = self._marks.pop(0)
            is_at_stop = following is not None and mark.silence_ms >= following.silence_ms
            at = stop if is_at_stop else min(stop, ended + mark.silence_ms * self._rate // 1000)
            self._mark(mark, at, TimeQuality.EXACT, index)


def _rest(segment: _Segment, ended: int) -> list[TimedItem]:
    """Returns the words that were not told while the segment went on."""
    words, followed = segment.words[segment.num_told :], segment.followed
    if followed is None:
        places = [_share(segment, word.spoken, ended) for word in words]
        return [_word(segment, start, stop, TimeQuality.ESTIMATED) for start, stop in places]

    def place(token: int) -> int:
        # A token that was never reached is behind the last step.
        step = segment.step(token)
        return ended if step is None else min(ended, segment.place(SAMPLES_PER_STEP * step))

    return [_word(segment, place(word.tokens[0]), place(word.tokens[1]), TimeQuality.ATTENTION) for word in words]


def _share(segment: _Segment, spoken: tuple[int, int], ended: int) -> tuple[int, int]:
    """Returns the samples of characters of a segment, as if every letter of it took the same time."""
    text = segment.prompt.segment.text
    whole, length = max(1, letter_weight(text)), ended - segment.began
    start, stop = (segment.began + length * letter_weight(text[:place]) // whole for place in spoken)
    return min(start, ended), min(stop, ended)


def _word(segment: _Segment, start: int, stop: int, quality: TimeQuality) -> TimedItem:
    """Returns the next word of a segment with its time, as told."""
    word, spoken = segment.words[segment.num_told], segment.prompt.segment
    before = segment.words[segment.num_told - 1].spoken[1] if segment.num_told else 0
    segment.num_told += 1
    start = max(start, segment.told_until)
    segment.told_until = stop = max(start, stop)
    reading = spoken.text[slice(*word.spoken)]
    return TimedItem(
        TimeKind.WORD, start, stop, quality, spoken.index, word.source, reading, before=spoken.text[before : word.spoken[0]]
    )


def _whole(segment: _Segment, ended: int) -> TimedItem:
    spoken = segment.prompt.segment
    return TimedItem(
        TimeKind.SEGMENT,
        segment.began,
        ended,
        TimeQuality.EXACT,
        spoken.index,
        spoken.source,
        spoken.text,
        voice=spoken.prosody.voice,
    )
