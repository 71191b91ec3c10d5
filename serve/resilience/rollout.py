"""Rollout: which version answers a request, and when a version loses its share.

In:    weights; outcomes of the requests of each version; results of probes
Out:   a version for a name, a listener and a voice
Owns:  shares, recent outcomes, and which version is out of service until when, as one ingress replica sees it
Never: HTTP; a request that already has a version

Weighted rendezvous hashing: every version draws a number from (version, listener, voice), and the best one answers. A listener
keeps its version of a voice until the weights change. Moving weight between two versions moves only listeners of these two.
"""

import hashlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from serve.config.model_versions import RoutesConfig, Version

LOG = logging.getLogger("ray.serve.chattts")

MIN_REQUESTS = 20  # within the window before a version is judged: one failure is then a margin
WINDOW_S = 300.0  # how long a request counts
ERROR_MARGIN = 0.05  # share of failed requests allowed above the stable version's
LATENCY_FACTOR = 1.5  # allowed median time to first audio, relative to the stable version's
HOLD_S = 600.0  # without a share after a roll-back, doubled every time
FAILED_PROBES = 3  # in a row that take a version out of service
GOOD_PROBES = 6  # in a row that bring it back: more, so that it does not swing
MOST_REMEMBERED = 1000  # requests per version
LEAST_DELAY_S = 0.1  # a version this much later than the stable one is not slow, whatever the factor
MOST_DOUBLINGS = 7


@dataclass(slots=True)
class Track:
    """Outcomes, probes and roll-backs of one version."""

    ended: deque[tuple[float, bool, float | None]] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))
    """(time, failed, time to first audio) of recent requests [s]"""
    is_known: bool = False
    """whether a probe has succeeded"""
    failed_probes: int = 0
    successful_probes: int = 0
    trouble: str = ""
    """what the probes report; empty: nothing"""
    rolled_back: str = ""
    """reason; empty: not rolled back"""
    back_at: float = 0.0
    roll_backs: int = 0
    """since the weights were set"""
    all_roll_backs: int = 0


class Rollout:
    """Chooses versions and judges them for one ingress replica."""

    def __init__(
        self, versions: Sequence[Version], routes: RoutesConfig | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.versions = {version.id: version for version in versions}
        self.routes = routes or RoutesConfig()
        self._clock = clock
        self._tracks = {version: Track() for version in self.versions}

    def configure(self, routes: RoutesConfig) -> None:
        """Sets weights and limits for the requests from now on, and judges every version again."""
        if routes != self.routes:
            self.routes = routes
            for track in self._tracks.values():
                track.ended.clear()
                track.rolled_back, track.roll_backs = "", 0
            LOG.info("versions: weights are %s", self.routes.weights or "those of the file: the first version of each name")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models, in the order of the file."""
        return tuple(dict.fromkeys(version.name for version in self.versions.values()))

    def choose(self, name: str, listener: str, voice: str) -> Version:
        """Returns the version of a name that answers a listener in a voice."""
        shares = self.shares(name)
        drawn = {version: _draw(version, listener, voice) for version, share in shares.items() if share > 0}
        return self.versions[max(drawn, key=lambda version: -shares[version] / math.log(drawn[version]))]

    def shares(self, name: str) -> dict[str, float]:
        """Returns the share of each version of a name, 1 in total. If all are out of service, the stable one is not."""
        siblings = [version.id for version in self.versions.values() if version.name == name]
        weights = {version: self._weight(version) for version in siblings}
        in_service = {version: 0.0 if self.out(version) else weight for version, weight in weights.items()}
        if not any(in_service.values()):
            in_service = {version: float(version == self.stable(name)) for version in siblings}
        total = sum(in_service.values())
        return {version: weight / total for version, weight in in_service.items()}

    def stable(self, name: str) -> str:
        """Returns the version with the greatest weight, the first of equals; the others are measured against it."""
        siblings = [version.id for version in self.versions.values() if version.name == name]
        return max(siblings, key=self._weight)

    def out(self, version: str) -> str:
        """Returns why a version only gets requests that name it; empty: it is in service."""
        track = self._tracks[version]
        if track.rolled_back and self._clock() >= track.back_at:
            LOG.warning("versions: %s is tried again", version)
            track.rolled_back = ""
            track.ended.clear()
        return track.rolled_back or track.trouble

    def ended(self, version: str, *, failed: bool, first_audio_s: float | None) -> None:
        """Records the end of a request; `failed` if the version is to blame."""
        self._tracks[version].ended.append((self._clock(), failed, first_audio_s))
        stable = self.stable(self.versions[version].name)
        if version != stable and not self.out(version):
            why = self._worse_than(version, stable)
            if why:
                self._roll_back(version, why)

    def probed(self, version: str, trouble: str) -> None:
        """Records a probe; `trouble` is empty if it succeeded. Until the first success one probe decides, so that no request
        waits for a new version without replicas."""
        track = self._tracks[version]
        bad, good = (FAILED_PROBES, GOOD_PROBES) if track.is_known else (1, 1)
        track.is_known = track.is_known or not trouble
        track.failed_probes = track.failed_probes + 1 if trouble else 0
        track.successful_probes = 0 if trouble else track.successful_probes + 1
        if not track.trouble and track.failed_probes >= bad:
            track.trouble = trouble
            LOG.error("versions: %s has trouble: %s", version, trouble)
        elif track.trouble and track.successful_probes >= good:
            track.trouble = ""
            LOG.warning("versions: %s is well again", version)

    def roll_backs(self, version: str) -> int:
        """Returns the number of roll-backs since the replica started."""
        return self._tracks[version].all_roll_backs

    def summary(self, version: str) -> dict[str, object]:
        """Returns share, state and counts of a version for /health and /v1/models."""
        requests = self._recent(version)
        firsts = [first for _, _, first in requests if first is not None]
        return {
            "share": round(self.shares(self.versions[version].name)[version], 4),
            "state": self.out(version) or "in_service",
            "requests": len(requests),
            "failed": sum(failed for _, failed, _ in requests),
            "first_audio_s": round(median(firsts), 3) if firsts else None,
        }

    def _weight(self, version: str) -> float:
        name = self.versions[version].name
        siblings = [sibling.id for sibling in self.versions.values() if sibling.name == name]
        named = {sibling: self.routes.weights[sibling] for sibling in siblings if sibling in self.routes.weights}
        if not any(named.values()):
            return float(version == siblings[0])
        return named.get(version, 0.0)

    def _recent(self, version: str) -> list[tuple[float, bool, float | None]]:
        since = self._clock() - WINDOW_S
        return [entry for entry in self._tracks[version].ended if entry[0] >= since]

    def _worse_than(self, version: str, stable: str) -> str:
        """Returns the reason; empty: it is not worse, or there are too few requests."""
        own, other = self._recent(version), self._recent(stable)
        if len(own) < MIN_REQUESTS:
            return ""
        errors, usual = (sum(failed for _, failed, _ in them) / max(1, len(them)) for them in (own, other))
        if errors > usual + ERROR_MARGIN:
            return f"errors: {errors:.0%} of its requests failed, {usual:.0%} of {stable}'s"
        firsts, usually = ([first for _, _, first in them if first is not None] for them in (own, other))
        if len(usually) >= MIN_REQUESTS and firsts:
            late, on_time = median(firsts), median(usually)
            if late > max(LATENCY_FACTOR * on_time, on_time + LEAST_DELAY_S):
                return f"latency: first audio after {late:.2f} s, {stable}'s after {on_time:.2f} s"
        return ""

    def _roll_back(self, version: str, why: str) -> None:
        track = self._tracks[version]
        hold_s = HOLD_S * 2 ** min(track.roll_backs, MOST_DOUBLINGS)
        track.roll_backs += 1
        track.all_roll_backs += 1
        track.rolled_back, track.back_at = why, self._clock() + hold_s
        LOG.error("versions: %s is rolled back for %d s: %s", version, hold_s, why)


def _draw(version: str, listener: str, voice: str) -> float:
    """Returns a number in (0, 1) that depends on the arguments alone."""
    digest = hashlib.blake2b("\0".join((version, listener, voice)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest) + 0.5) / 2**64
