"""Replicas: the state of the deployments behind an ingress replica.

In:    their handles, and their stats as they are asked for
Out:   load, trouble, who sleeps; to the rollout, which version answers
Owns:  the breakers, the probes, the checks of stages that show no progress
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.spec import STEPS_PER_SECOND
from pipeline.types import LoadReport
from serve.config.model_versions import TEXT, Version
from serve.resilience.autoscaling import BACKLOG_S, BUSY
from serve.resilience.circuit_breaker import Breaker
from serve.resilience.rollout import Rollout
from serve.stages.cold_start import ColdStarts, Wakefulness
from serve.stages.stage_clients import ask_stats
from serve.stages.stage_handle import StageHandle

LOG = logging.getLogger("ray.serve.chattts")

OF_REPLICA = ("replica", "gpus", "trouble", "has_work", "gpu_mem_percent", BUSY, BACKLOG_S)  # what the stats of any stage have
LOOK_S = 1.0  # between two checks for calls without progress


class Builds:
    """The fingerprints of each deployment's replicas, as they were last told."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, dict[str, int]] = {}

    @property
    def differing(self) -> dict[str, dict[str, int]]:
        """Deployment -> fingerprint -> how many replicas have it, where there are several."""
        return {name: counts for name, counts in self._fingerprints.items() if len(counts) > 1}

    def count(self, deployments: Iterable[str]) -> int:
        """Returns how many fingerprints the replicas of a deployment have, at most; 1: they all agree."""
        return max((len(self._fingerprints.get(name, ())) or 1 for name in deployments), default=1)

    def report(self, deployment: str, replicas: Iterable[Mapping[str, Any]]) -> None:
        """Takes what the replicas of a deployment have just told; one that says nothing of it does not count."""
        counts = dict(sorted(Counter(replica["fingerprint"] for replica in replicas if replica.get("fingerprint")).items()))
        before = self._fingerprints.get(deployment, {})
        if not counts:
            return  # no replica has answered: nothing is known anew
        self._fingerprints[deployment] = counts
        if len(counts) > 1 and counts.keys() != before.keys():
            LOG.warning("replicas of %s differ: one request may have other bytes on each, and none goes on for another: "
                        "fingerprints %s", deployment, counts)  # fmt: skip
        elif len(counts) == 1 and len(before) > 1:
            LOG.info("replicas of %s are alike again", deployment)


class Replicas:
    """The replicas of every version."""

    def __init__(self, rollout: Rollout, handles: Mapping[str, StageHandle], wake_limit_s: float) -> None:
        """
        Args:
            handles: deployment name -> its handle.
            wake_limit_s: the argument of ColdStarts [s].
        """
        self.cold_starts = ColdStarts(handles, wake_limit_s)
        self.builds = Builds()
        self._listened: dict[tuple[str, ...], tuple[float, float]] = {}
        self._rollout = rollout
        self._handles = handles
        self._deployments = {"text": TEXT}  # stage -> the deployment that works for it
        for version in rollout.versions.values():
            acoustic, vocoder = stages_of(version)
            self._deployments |= {acoustic: version.acoustic, vocoder: version.vocoder}
        self.breakers = {stage: Breaker(stage) for stage in self._deployments}
        """by stage"""

    def kinds_of_replicas(self) -> dict[str, int]:
        """Returns version -> how many kinds of replicas a stage of it has, at most; 1: all would make the same bytes."""
        return {version.id: self.builds.count(needed_by(version)) for version in self._rollout.versions.values()}

    def wakefulness(self) -> dict[str, Wakefulness]:
        """Returns deployment -> whether it has replicas."""
        return {name: self.cold_starts.state(name) for name in self._handles}

    async def stats(self, kind: str) -> list[dict[str, Any]]:
        """Returns the stats of every replica of one kind of stage, with the name of the deployment if there are several."""
        deployments = [TEXT] if kind == "text" else [getattr(version, kind) for version in self._rollout.versions.values()]
        answers = await self._ask(deployments)
        if kind == "vocoder":
            answers = {name: list(map(of_vocoder, replies)) for name, replies in answers.items()}
        single = len(answers) == 1
        return [reply if single else {"deployment": name, **reply} for name, replies in answers.items() for reply in replies]

    def load_reports(self) -> list[LoadReport]:
        """Returns the latest report of each replica of the acoustic models."""
        versions = self._rollout.versions.values()
        return [report for version in versions for report in self._handles[version.acoustic].table.reports]

    def load(self) -> tuple[float, float, float]:
        """Returns the fullest queue, and what the slowest engine decoded for listeners since the last call.

        Returns:
            share of the queue's capacity, time it took [s], audio that each listener got meanwhile [s].
        """
        fullness, slowest, before = 0.0, (0.0, 0.0), self._listened
        self._listened = {}
        for version in self._rollout.versions.values():
            engine, table = version.pipeline.engine, self._handles[version.acoustic].table
            fullness = max(fullness, table.most_waiting / engine.max_waiting if engine.max_waiting else 0.0)
            for report in table.reports:
                key = version.acoustic, report.replica, report.build  # one that was swapped counts anew
                total = report.listened_s, report.listened_steps / STEPS_PER_SECOND
                self._listened[key] = total
                took_s, audio_s = (now - then for now, then in zip(total, before.get(key, total), strict=True))
                if audio_s > 0 and took_s * slowest[1] >= slowest[0] * audio_s:
                    slowest = took_s, audio_s
        return fullness, *slowest

    async def unresponsive(self) -> list[str]:
        """Returns the deployments without a healthy replica that versions in service need: their requests would fail.

        One that is asleep is not among them: its requests are told when to come back.
        """
        rollout = self._rollout
        needed = [version for version in rollout.versions.values() if rollout.shares(version.name)[version.id] > 0]
        answers = await self._ask(self.cold_starts.awake(name for version in needed for name in needed_by(version)))
        silent = [name for name, replies in answers.items() if not any(map(is_well, replies))]
        return self.cold_starts.awake(silent)  # meanwhile a replica may have gone

    async def probe(self) -> None:
        """Probes every version each period, until cancelled."""
        while True:
            await asyncio.sleep(self._rollout.routes.probe.period_s)
            await self.probe_once()

    async def probe_once(self) -> None:
        """Probes every version once."""
        for version in self._rollout.versions.values():
            answers = await self._ask(self.cold_starts.awake(needed_by(version)))
            for deployment, replicas in answers.items():
                self.builds.report(deployment, filter(is_well, replicas))
            self._rollout.probed(version.id, trouble_in(answers, self._rollout.routes.probe.max_gpu_memory_percent))

    async def watch_silence(self) -> None:
        """Checks every LOOK_S whether the replicas of stages whose calls show no progress hang, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.gather(*(self._check_silent(breaker) for breaker in self.breakers.values() if breaker.is_silent))

    async def _check_silent(self, breaker: Breaker) -> None:
        deployment = self._deployments[breaker.stage]
        if not self.cold_starts.is_awake(deployment):
            return  # its calls wait for a replica that is being started
        well = [reply for reply in await ask_stats(self._handles[deployment]) if is_well(reply)]
        breaker.judge_silence(is_well=bool(well), has_work=any(reply.get("has_work", True) for reply in well))

    async def _ask(self, deployments: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Returns the stats of the replicas of each deployment; every deployment is called once, all at the same time."""
        names = list(dict.fromkeys(deployments))
        answers = await asyncio.gather(*(ask_stats(self._handles[name]) for name in names))
        return dict(zip(names, answers, strict=True))


def stages_of(version: Version) -> tuple[str, str]:
    """Returns the stages that generate and decode for a version, as breakers name them; they may be one."""
    return version.stage("acoustic"), version.stage("acoustic" if version.decodes_itself else "vocoder")


def needed_by(version: Version) -> tuple[str, ...]:
    """Returns the deployments that speech with a version needs."""
    return tuple(dict.fromkeys((TEXT, version.acoustic, version.vocoder)))


def of_vocoder(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stats of a vocoder, cut out of its engine's where it is beside it."""
    if not isinstance(beside := stats.get("vocoder"), Mapping):
        return dict(stats)
    return {**{name: stats[name] for name in OF_REPLICA}, **beside}


def is_well(stats: Mapping[str, Any]) -> bool:
    """True if a replica reports no trouble in its stats."""
    return not stats.get("trouble")


def fullest_gpu(replicas: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the memory use of the fullest GPU of the replicas [%]; None if none of them has a GPU."""
    return max((replica["gpu_mem_percent"] for replica in replicas if replica.get("gpu_mem_percent") is not None), default=None)


def trouble_in(answers: Mapping[str, Iterable[Mapping[str, Any]]], most_gpu_mem_percent: float) -> str:
    """Returns the trouble with the replicas of a version; empty: none. One full GPU among several is trouble."""
    for name, replies in answers.items():
        replicas = list(replies)
        if not replicas:
            return f"no answer from {name}"
        if not any(map(is_well, replicas)):
            return f"{name}: {replicas[0]['trouble']}"
        fullest = fullest_gpu(replicas)
        if fullest is not None and fullest > most_gpu_mem_percent:
            return f"GPU memory of {name} is {fullest:.0f} % full"
    return ""
