"""Builds: whether all replicas of a stage would make the same bytes of the same request.

In:    stats of replicas, with their fingerprints
Out:   the stages whose replicas differ; a log line once per change
Owns:  what each stage was found to be last
Never: Ray; a judgement on which replica is right
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

LOG = logging.getLogger("ray.serve.chattts")


class Builds:
    """The fingerprints of each deployment's replicas, as they were last told."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, int]] = {}

    @property
    def differing(self) -> dict[str, dict[str, int]]:
        """Deployment -> fingerprint -> how many replicas have it, where there are several."""
        return {name: found for name, found in self._found.items() if len(found) > 1}

    def count(self, deployments: Iterable[str]) -> int:
        """Returns how many fingerprints the replicas of a deployment have, at most; 1: they all agree."""
        return max((len(self._found.get(name, ())) or 1 for name in deployments), default=1)

    def told(self, deployment: str, replicas: Iterable[Mapping[str, Any]]) -> None:
        """Takes what the replicas of a deployment have just told; one that says nothing of it does not count."""
        found = dict(sorted(Counter(one["fingerprint"] for one in replicas if one.get("fingerprint")).items()))
        before = self._found.get(deployment, {})
        if not found:
            return  # no replica has answered: nothing is known anew
        self._found[deployment] = found
        if len(found) > 1 and found.keys() != before.keys():
            LOG.warning("replicas of %s differ: one request may have other bytes on each, and none goes on for another: "
                        "fingerprints %s", deployment, found)  # fmt: skip
        elif len(found) == 1 and len(before) > 1:
            LOG.info("replicas of %s are alike again", deployment)
