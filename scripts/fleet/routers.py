"""Routers: the step router beside Serve's own, over unequal replicas of one real cluster.

In:    speeds of the replicas, loads
Out:   first audio and refusals of both, which take turns with the same arrivals; scripts/bench/results/fleet
Owns:  a Ray of its own
Never: a model: engines compute nothing and take their time (null_engine.py); HTTP

    python -m scripts.fleet.routers --speeds 1,1,2,2,4,4 --loads 0.7,0.9 --seconds 30 --rounds 3

Both deployments have the same replicas; whoever is not asked has no work. Callers are two processes, each with the router, the
table and the client of an ingress.
"""

import argparse
import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from pipeline.config import EngineConfig
from pipeline.engine.engine import Engine
from pipeline.errors import AtCapacity, SynthesisError
from pipeline.spec import STEPS_PER_SECOND
from pipeline.types import SamplingParams, SchedulingParams
from scripts.bench.record import RESULTS, publish
from scripts.bench.workload import poisson, random_of
from scripts.fleet.null_engine import WIDTH, NullRunner
from serve.observability.tracing import Tracing
from serve.remote.remote_handle import RemoteHandle
from serve.remote.replica import replica_context
from serve.remote.step_router import BACKOFF, router_config
from serve.resilience.autoscaling import EngineLoad
from serve.simulation.fleets import quantiles
from serve.stages.acoustic_stage import AcousticStage, short_prompt
from serve.stages.replica_table import table_of
from serve.stages.stage_clients import StageGenerator

STEP_S = 0.02  # of a replica of speed 1
SLOTS, STEPS_PER_ROUND = 4, 4
FIRST_STEPS = 24
PROMISE_S = 10.0
BLOCKS = (FIRST_STEPS, 48)  # as a vocoder takes them: blocks of a round would keep the cores busy with sending
POLICIES = {"serve": "Counts", "steps": "Steps"}
CALLERS = 2


@ray.remote(num_cpus=0)
class Speeds:
    """Deals the speeds out to the replicas of each deployment."""

    def __init__(self, speeds: list[float]) -> None:
        self._speeds = speeds
        self._dealt = dict.fromkeys(POLICIES.values(), 0)

    def deal(self, deployment: str) -> float:
        """Returns the speed of the next replica."""
        number = self._dealt[deployment]
        self._dealt[deployment] += 1
        return self._speeds[number % len(self._speeds)]


class NullAcoustic(AcousticStage):
    """The acoustic stage over a null engine."""

    async def __init__(self, speeds: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        self._context = replica_context()
        deployment = serve.get_replica_context().deployment
        step_s = STEP_S / await speeds.deal.remote(deployment)
        config = EngineConfig(slots=SLOTS, steps_per_round=STEPS_PER_ROUND, max_waiting=2 * SLOTS, ignore_eos=True, threads=1)
        self._engine = Engine(
            config,
            cast(Any, SimpleNamespace(gpt_spec=SimpleNamespace(width=WIDTH))),
            factory=lambda config, checkpoint: NullRunner(config.slots, config.steps_per_round, step_s),
        )
        self._tracing = Tracing(None, deployment, self._context.replica)
        self._vocoder, self._fingerprint, self._load = None, "null", EngineLoad()

    def check_health(self) -> None:
        """Raises EngineDead if the engine has died."""
        self._engine.check_health()


class Caller:
    """What an ingress has: a handle, its table, its client."""

    def __init__(self, **handles: DeploymentHandle[Any]) -> None:
        self._generators = {
            name: StageGenerator(RemoteHandle(handle, table_of(name) if name == POLICIES["steps"] else None))
            for name, handle in handles.items()
        }

    async def run(self, policy: str, arrivals_s: list[float], steps: list[int], begin_at: float) -> list[float | None]:
        """Returns the first audio of each call [s]; None: it was refused."""
        calls = zip(arrivals_s, steps, strict=True)
        return await asyncio.gather(*(self._call(policy, begin_at + at, count) for at, count in calls))

    async def _call(self, policy: str, at: float, steps: int) -> float | None:
        await asyncio.sleep(max(0.0, at - time.time()))
        scheduling = SchedulingParams(first_steps=FIRST_STEPS, first_audio_s=PROMISE_S, blocks=BLOCKS)
        prompt = replace(short_prompt(0, steps), scheduling=scheduling)
        generated = self._generators[POLICIES[policy]].generate(prompt, SamplingParams(), timeout_s=120.0)
        first_s, began = None, time.monotonic()
        try:
            async with aclosing(generated) as blocks:
                async for block in blocks:
                    if first_s is None and block.stop >= min(FIRST_STEPS, steps):
                        first_s = time.monotonic() - began
        except AtCapacity:
            return None
        except SynthesisError as error:
            raise RuntimeError(f"a call failed: {error}") from error
        return first_s


def deploy(speeds: list[float]) -> DeploymentHandle[Any]:
    """Starts both deployments and the callers, and returns the handle of the callers."""
    dealer = cast(Any, Speeds).remote(speeds)
    options = {"num_replicas": len(speeds), "max_ongoing_requests": 96, "ray_actor_options": {"num_cpus": 0}}
    own = RequestRouterConfig.model_validate(BACKOFF)
    routers = {"serve": own, "steps": router_config(POLICIES["steps"], by_steps=True)}
    stages = {
        name: cast(Any, serve.deployment(NullAcoustic)).options(name=name, request_router_config=routers[policy], **options)
        for policy, name in POLICIES.items()
    }
    bound = {name: stage.bind(dealer) for name, stage in stages.items()}
    caller = cast(Any, serve.deployment(Caller)).options(num_replicas=CALLERS, ray_actor_options={"num_cpus": 0})
    running: DeploymentHandle[Any] = serve.run(caller.bind(**bound), name="routers", route_prefix=None)
    return running


def measure(
    caller: DeploymentHandle[Any], policy: str, load: float, seconds: float, capacity: float, *path: object
) -> dict[str, Any]:
    """Runs one policy against arrivals that follow from the path."""
    draws = random_of("routers", *path)
    is_long = draws.random(4096) < 0.25
    audio_s = np.where(is_long, draws.lognormal(2.2, 0.3, 4096).clip(5, 18), draws.lognormal(0.5, 0.4, 4096).clip(0.8, 4))
    lengths = np.round(audio_s * STEPS_PER_SECOND).astype(int)
    arrivals = poisson(load * capacity / lengths.mean(), seconds, "routers", *path)
    begin_at = time.time() + 0.5
    answers = [
        caller.run.remote(policy, arrivals[part::CALLERS], lengths[: len(arrivals)][part::CALLERS].tolist(), begin_at)
        for part in range(CALLERS)
    ]
    firsts = [first for answer in answers for first in answer.result()]
    served = sorted(first for first in firsts if first is not None)
    at = [round(1000 * first_s) for first_s in quantiles(served)]
    line = {"policy": policy, "load": load, "calls": len(firsts), "refused": round(1 - len(served) / len(firsts), 4)}
    return line | dict(zip(("p50_ms", "p95_ms", "p99_ms"), at, strict=True))


def main() -> None:
    """Measures, prints a line a run, and writes the medians."""
    parser = argparse.ArgumentParser(description="Compare the step router with Serve's own.")
    parser.add_argument("--speeds", default="1,1,2,2,4,4")
    parser.add_argument("--loads", default="0.7,0.9")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    speeds, loads = ([float(value) for value in text.split(",")] for text in (args.speeds, args.loads))
    capacity = sum(SLOTS / (STEP_S / speed) for speed in speeds)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        caller = deploy(speeds)
        for policy in POLICIES:  # every replica has made steps
            measure(caller, policy, 0.5, 8.0, capacity, "warm")
        runs = []
        for number in range(args.rounds):
            for load in loads:
                for policy in POLICIES:
                    runs.append(measure(caller, policy, load, args.seconds, capacity, number, load))
                    print(json.dumps(runs[-1]), flush=True)
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()
    ratios = {
        str(load): median(
            steps["p95_ms"] / own["p95_ms"] for own, steps in zip(runs[::2], runs[1::2], strict=True) if own["load"] == load
        )
        for load in loads
    }
    publish("routers", {"speeds": speeds, "seconds": args.seconds, "runs": runs, "p95_ratio": ratios}, RESULTS / "fleet")


if __name__ == "__main__":
    main()
