"""Equality: the same bits alone, crowded, in other slots, in another engine, captured or eager.

In:    a checkpoint, a device, a format
Out:   promises
Owns:  nothing
Never: time
"""

from contextlib import closing

from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.engine.engine import Engine
from scripts.evaluate.gpu_check.report import Report
from scripts.evaluate.gpu_check.workload import Format, Take, prompt, takes


def check_equality(
    report: Report, checkpoint: Checkpoint, device: str, how: Format, slots: int, steps: int, split: int | None = None
) -> None:
    """Checks for the same bits alone, crowded, in reused slots, in another engine, captured or eager.

    Args:
        split: positions of a split of attention; None: the engine's own choice.
    """
    name, place = (how.name, f"{slots} slots") if split is None else (how.name, f"{slots} slots, splits of {split}")
    width, numbers = checkpoint.gpt_spec.width, list(range(slots * 2))
    config = EngineConfig.model_validate(
        how.settings(device)
        | {"slots": slots, "max_prompt": 64, "max_steps": 256}
        | {"steps_per_round": 4, "prefill_rows": 4, "kv_budget_mib": 32768, "attention_split": split}
    )
    with closing(Engine(config, checkpoint)) as engine:
        beyond = min(len(prompt(number, width, steps).ids) for number in numbers) + steps
        report.figure(f"{name}, {place}: positions", beyond, f"every sequence is {beyond} positions long or longer")
        alone = [takes(engine, [number], width, steps)[0] for number in numbers[:8]]
        graphs = engine.num_graphs
        for what, order in (("crowded", numbers), ("in other slots", numbers[::-1])):
            crowded = dict(zip(order, takes(engine, order, width, steps), strict=True))
            promise_equal(report, f"{name}: alone = {what} ({place})", alone, [crowded[n] for n in numbers[:8]])
        if device == "cuda":
            report.promise(f"{name}: rounds are captured ({place})", graphs == 2, f"{graphs} CUDA graphs")
            engine.drop_graphs()
            promise_equal(report, f"{name}: captured = eager ({place})", alone, takes(engine, numbers[:8], width, steps))
    del engine  # its memory, before the next one takes its own
    with closing(Engine(config, checkpoint)) as engine:
        promise_equal(report, f"{name}: another engine = this one ({place})", alone, takes(engine, numbers[:8], width, steps))


def promise_equal(report: Report, what: str, expected: list[Take], found: list[Take]) -> None:
    equal = sum(one.equals(other) for one, other in zip(expected, found, strict=True))
    report.promise(what, equal == len(expected), f"{equal} of {len(expected)} bit-equal")
