"""Container: the entry point of the image: looks for a GPU, picks device and precision, starts the service.

In:    the words after the image's name, a command of chattts-serve; none: start. Environment variables, `VARIABLES`
Out:   a configuration in the cache folder, and the command that runs it in place of this process
Owns:  that file
Never: a setting that no shipped configuration has, except where a container differs: address, checkpoint, keys, Redis

On a GPU it is configs/gpu.yaml, sized for the card as `chattts-serve size` does. On a CPU it is configs/cpu.yaml; for the demo
voice and the small random one it is configs/dev.yaml.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from pipeline.errors import ConfigError
from pipeline.model.gpu.placement import has_driver, sees_gpu
from pipeline.paths import cache_home
from pipeline.with_torch import INSTALL, has_torch, torch_part
from pipeline.yaml_loader import parse_yaml
from serve.commands.config_path import FOLDER

VARIABLES = {
    "CHATTTS_CHECKPOINT": "the checkpoint: demo, hub:2Noise/ChatTTS, or a folder",
    "CHATTTS_KEYS": "open (whoever reaches the port is served, with keys too) or required; unset: open until a key exists",
    "CHATTTS_REDIS": "redis://host:port/number: voices, keys, quotas and jobs, in a Redis that evicts nothing",
    "CHATTTS_REDIS_CACHE": "redis://host:port/number: a cache that outlives the container, in a Redis of its own that evicts",
}
OPEN = {"open": True, "required": False, "": "until_first_key"}  # CHATTTS_KEYS -> keys.open
SMALL = ("demo", "small-random")  # of these a laptop's two cores make speech sooner than it is heard
ANY_HOST = "0.0.0.0"


def main(arguments: list[str] | None = None) -> int:
    """Becomes `chattts-serve` with the words it was given, or with `start` and the configuration it has written."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        try:
            words = ["start", str(prepared(os.environ))]
        except (ConfigError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    return become(words)


def become(words: list[str]) -> NoReturn:
    """Replaces this process by `chattts-serve` with these words: signals and the exit code are then its own."""
    os.execv(sys.executable, [sys.executable, "-m", "serve.commands", *words])


def prepared(variables: Mapping[str, str]) -> Path:
    """Writes the configuration for this machine and returns its path.

    Raises:
        ConfigError: a variable has a value that is not allowed, or the service would refuse the configuration.
        OSError: the cache folder cannot be written.
    """
    path = cache_home().absolute() / "container.yaml"
    checkpoint = variables.get("CHATTTS_CHECKPOINT") or "demo"
    text, reason = base(checkpoint)
    document = adapted(parse_yaml(text), variables, checkpoint, path)
    # Ray, which the check needs, is loaded for a start alone: other commands go through here too.
    if mistakes := importlib.import_module("serve.config.config_file").find_mistakes(document):
        raise ConfigError("\n".join(f"{reason}: {mistake}" for mistake in mistakes))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=120), encoding="utf-8")
    print(f"{reason}: {path}", flush=True)
    return path


def base(checkpoint: str) -> tuple[str, str]:
    """Returns the text of the configuration for this machine's device, and why it is this one."""
    if sees_gpu():
        size = torch_part("serve.commands.operate.size", wanted_for="device cuda")
        try:
            card = size.card_here()
            choice = size.choose(card)
        except ConfigError as error:
            return on_cpu(checkpoint, str(error))
        if choice is None:
            return on_cpu(checkpoint, f"{card.name} has too little memory")
        return size.sized(choice, None), f"device cuda, {choice}"
    if has_driver() and not has_torch():
        return on_cpu(
            checkpoint, f"NVIDIA's driver is here, but this image has no PyTorch ({INSTALL}; --build-arg EXTRAS=torch)"
        )
    return on_cpu(checkpoint, "no GPU is seen (docker run --gpus all)")


def on_cpu(checkpoint: str, why: str) -> tuple[str, str]:
    """Returns the configuration for a CPU and a checkpoint of this size, and why."""
    name, precision = ("dev.yaml", "float32") if checkpoint in SMALL else ("cpu.yaml", "bfloat16, weights and kv int8")
    return (FOLDER / name).read_text(encoding="utf-8"), f"device cpu, {precision}, as in {name}; {why}"


def adapted(document: dict[str, Any], variables: Mapping[str, str], checkpoint: str, path: Path) -> dict[str, Any]:
    """Returns a configuration with what a container needs: an address that others reach, and what the variables say.

    Raises:
        ConfigError: CHATTTS_KEYS is neither open nor required.
    """
    keys = variables.get("CHATTTS_KEYS") or ""
    if keys not in OPEN:
        raise ConfigError(f"CHATTTS_KEYS is {keys!r}; it may be open or required")
    document["http_options"]["host"] = ANY_HOST
    args = document["applications"][0]["args"]
    args |= {"source": str(path), "keys": {"open": OPEN[keys]}}
    args["pipeline"]["checkpoint"] = checkpoint
    if redis := variables.get("CHATTTS_REDIS"):
        args["voices"] = args.get("voices", {}) | {"store": redis}
    if cache := variables.get("CHATTTS_REDIS_CACHE"):
        args["cache"] = args.get("cache", {}) | {"redis": cache}
    return document


if __name__ == "__main__":
    sys.exit(main())
