"""Active job: a job that this replica speaks, with what is missing of it.

In:    a record, a script, the finished parts
Out:   the next part; how far it is
Owns:  which parts wait, which are in progress, here or in other replicas, and when a failed one is tried again
Never: the store, tasks of other jobs
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from pipeline.books.job_files import JobFiles, PartNotes
from pipeline.books.script import Script
from serve.jobs.record import JobRecord

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
LONGEST_CLAIM_S = 60.0
"""in which a part that another replica has claimed is spoken"""


class ActiveJob:
    """One job of a runner."""

    def __init__(self, job_id: str, record: JobRecord, files: JobFiles, script: Script, lengths: Mapping[str, int]) -> None:
        """
        Args:
            lengths: of the parts that are finished, by their keys.
        """
        self.id = job_id
        self.record = record
        self.files = files
        self.script = script
        self.waiting = deque(key for key in dict.fromkeys(script.keys) if key not in lengths)
        """keys of the parts that nobody speaks yet, in the order of the text"""
        self.speaking: set[str] = set()
        self.claimed: set[str] = set()
        """keys of parts that are not finished, and that this replica may speak whoever else has claimed them"""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.retry_at = 0.0
        """before that nothing of it begins, by the loop's clock"""
        self.began_at = 0.0
        self.beat_at = 0.0
        """when the store is told next that this replica speaks it"""
        self.attempts = 0
        """failures so far"""
        self.is_finishing = False
        self.waiting_for = ""
        """what it lacks to go on, as in the record"""
        self._numbers = {key: number for number, key in reversed(list(enumerate(script.keys)))}
        self.elsewhere: dict[str, float] = {}
        """key of a part that another replica speaks -> when that was first seen"""
        self._made_s = 0.0
        self._retry_s = FIRST_RETRY_S

    @property
    def missing(self) -> int:
        """How many different parts are to be spoken."""
        return len(self.waiting) + len(self.speaking) + len(self.elsewhere)

    @property
    def done(self) -> int:
        """How many parts are finished."""
        missing = {*self.waiting, *self.speaking, *self.elsewhere}
        return sum(key not in missing for key in self.script.keys) if missing else len(self.script.keys)

    def number_of(self, key: str) -> int:
        """Returns the first part with a key."""
        return self._numbers[key]

    def take(self) -> str:
        """Returns the key of the next part, which is in progress from now on."""
        key = self.waiting.popleft()
        self.speaking.add(key)
        return key

    def claim(self, key: str) -> bool:
        """Claims a part on the disk; False if another replica has."""
        if key not in self.claimed and not self.files.claim(key):
            return False
        self.claimed.add(key)
        return True

    def leave(self, key: str, now: float) -> None:
        """Leaves a part in progress to another replica, from now on by the loop's clock [s]."""
        self.speaking.discard(key)
        self.elsewhere[key] = now

    def write(self, key: str, pcm: bytes, notes: PartNotes) -> None:
        """Writes the samples of a part."""
        self.files.keep(key, pcm, notes)
        self.files.release((key,))
        self.claimed.discard(key)

    def keep(self, key: str, audio_s: float) -> None:
        """A part is finished."""
        self.speaking.discard(key)
        self._made_s += audio_s
        self._retry_s = FIRST_RETRY_S
        self._waits_for("")

    def give_back(self, key: str) -> None:
        """A part that is not finished is nobody's any more."""
        if key in self.speaking:
            self.speaking.discard(key)
            self.waiting.appendleft(key)

    def look_again(self, lengths: Mapping[str, int]) -> None:
        """Parts whose samples are gone are to be spoken again.

        Args:
            lengths: of the parts whose samples are there, by their keys.
        """
        known = {*self.waiting, *self.speaking, *self.elsewhere, *lengths}
        self.waiting.extend(key for key in dict.fromkeys(self.script.keys) if key not in known)

    def share(self, claims: Mapping[str, int | None], now: float) -> list[str]:
        """Leaves parts to the replicas that have claimed them, for LONGEST_CLAIM_S. Returns the keys of finished ones.

        Args:
            claims: as of JobFiles.claims.
            now: by the loop's clock [s].
        """
        for key in [key for key in self.waiting if key in claims and key not in self.claimed]:
            self.waiting.remove(key)
            self.elsewhere[key] = now
        finished = {key: samples for key in self.elsewhere if (samples := claims.get(key)) is not None}
        lost = {key for key, since in self.elsewhere.items() if key not in claims or since + LONGEST_CLAIM_S <= now}
        for key in finished.keys() | lost:
            del self.elsewhere[key]
        self._made_s += sum(finished.values()) / self.record.output.sample_rate
        self.waiting.extend(sorted(lost - finished.keys(), key=self.number_of))
        self.claimed |= lost
        return [*finished]

    def failed(self, now: float, after_s: float = 0.0, *, waiting_for: str = "") -> None:
        """Something of it is tried again, not before `after_s`, and each time later."""
        self.attempts += 1
        self.retry_at = now + max(after_s, self._retry_s)
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        self._waits_for(waiting_for)

    def _waits_for(self, cause: str) -> None:
        if cause != self.waiting_for:
            self.waiting_for, self.beat_at = cause, 0.0  # the store is told at the next look

    def rate(self, now: float) -> float | None:
        """Returns the seconds of audio per second so far; None: nothing is finished yet."""
        return self._made_s / (now - self.began_at) if self._made_s and now > self.began_at else None


class AssistedJob(ActiveJob):
    """A job that another replica holds: only parts that this one has claimed wait, the last of the text first."""

    def __init__(self, job_id: str, record: JobRecord, files: JobFiles, script: Script, lengths: Mapping[str, int]) -> None:
        super().__init__(job_id, record, files, script, lengths)
        self._unclaimed: Iterator[str] = iter([*reversed(self.waiting)])
        self.waiting.clear()
        self.is_left = False
        """nothing more of it can be claimed"""

    def write(self, key: str, pcm: bytes, notes: PartNotes) -> None:
        """Writes the samples of a part; the claim stays on the disk until the holder has seen it."""
        self.files.keep(key, pcm, notes)
        self.claimed.discard(key)

    def claim(self, key: str) -> bool:
        """As ActiveJob says; False too where the disk takes no claim."""
        with suppress(OSError):
            return super().claim(key)
        return False

    def claim_more(self, count: int) -> list[str]:
        """Returns the keys of at most `count` more parts, claimed on the disk."""
        keys = [*islice(filter(self.claim, self._unclaimed), count)]
        self.is_left = len(keys) < count
        return keys
