"""Fleet: a center in a process of its own, boxes in this one whose stages compute nothing, and checkpoints of noise."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import requests
import yaml

from pipeline.checkpoint.layout import GPT_FILE, TOKENIZER_FILE, VOCOS_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.config import PipelineConfig
from pipeline.types import DecoderTraits, FinishReason, Prompt, StepBlock
from serve.commands.operate.run_center import write_keys
from serve.config.app_config import PROJECT
from serve.config.edge import EdgeConfig
from serve.edge.box_agent import BoxAgent
from serve.edge.signed_manifest import FileEntry, Manifest, Variant
from serve.edge.stage_swap import StageSwap
from serve.local.local_handle import LocalHandle
from tests.support.ports import free_port
from tests.support.waiting import wait_until

TRAITS = DecoderTraits(is_stateful=True, use_decoder=True, look_ahead=0, chunk_steps=(8,), is_beside_engine=True)
BLOCKS = 8
LIGHT, HEAVY = 40_000, 400_000  # bytes


class NullStage:
    """A stage whose codes say which one it is."""

    def __init__(self, mark: int, name: str = "", block_s: float = 0.0) -> None:
        """
        Args:
            mark: every code.
            block_s: time per block.
        """
        self.mark, self.name, self.block_s = mark, name, block_s
        self.trouble: Exception | None = None
        self.traits_of: DecoderTraits = TRAITS
        self.is_closed = False

    async def generate(self, prompt: Prompt, *arguments: Any) -> AsyncGenerator[StepBlock | Exception, None]:
        for number in range(BLOCKS):
            await asyncio.sleep(self.block_s)
            assert not self.is_closed, "a stream of a stage that is closed"
            if self.trouble is not None:
                yield self.trouble
                return
            codes, finish = np.full((8, 4), self.mark, np.int64), FinishReason.EOS if number == BLOCKS - 1 else None
            yield StepBlock(np.zeros((8, 0), np.float32), codes, 8 * number, finish)

    async def traits(self) -> DecoderTraits:
        return self.traits_of

    def check_health(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    async def close(self) -> None:
        self.is_closed = True


def noise(folder: Path, seed: int, size: int) -> Path:
    """Makes a checkpoint's folder: a tokenizer that all have, and noise."""
    chance = random.Random(seed)
    for file, content in (
        (TOKENIZER_FILE, b"{}"),
        (VOCOS_FILE, random.Random(size).randbytes(1000)),
        (GPT_FILE, chance.randbytes(size)),
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    return folder


def manifest(box: str = "b1", serial: int = 1, url: str = "http://127.0.0.1:1", **file: Any) -> Manifest:
    """A manifest with one file."""
    entry = {"path": GPT_FILE, "size": 5, "sha256": "0" * 64} | file
    variant = Variant(name="v", weights="bf16", vocoder="full", files=(FileEntry.model_validate(entry),))
    return Manifest(box=box, serial=serial, url=url, variants=(variant,))


class Center:
    """`chattts-serve center` over two variants, light and heavy."""

    def __init__(self, folder: Path, broker: str, url: str = "", *, demo: bool = False) -> None:
        """
        Args:
            url: at which boxes reach it; empty: directly.
            demo: it has the demo voice, in int8, in place of noise.
        """
        self.port, self.folder, self.key = free_port(), folder, folder / "center.key"
        write_keys(self.key)
        rows: dict[str, dict[str, str]] = {
            "light": {"folder": str(noise(folder / "light", 1, LIGHT)), "weights": "int8", "vocoder": "full"},
            "heavy": {"folder": str(noise(folder / "heavy", 2, HEAVY)), "weights": "bf16", "vocoder": "full"},
        }
        rows = {"light": rows["light"] | {"folder": str(DEMO_FOLDER)}} if demo else rows
        table: dict[str, Any] = {"broker": broker, "key": "center.key", "options": {"client_id": "center"}, "variants": rows}
        table |= {"url": url or f"http://127.0.0.1:{self.port}", "host": "127.0.0.1", "port": self.port}
        (folder / "fleet.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "serve.commands", "center", str(self.folder / "fleet.yaml")]
        self._process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL)
        wait_until(lambda: self.status("nothing") == 404)

    def status(self, digest: str) -> int:
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/files/{digest}", timeout=10).status_code
        except requests.ConnectionError:
            assert self._process.poll() is None
            return 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)


class NullBox:
    """A box whose stages compute nothing."""

    def __init__(self, folder: Path, broker: str, key: Path, name: str = "b1") -> None:
        self.handle = LocalHandle(NullStage(0, "shipped"))
        self.loaded: list[str] = []
        self.next_stage = NullStage
        config = EdgeConfig(broker=broker, key=f"{key}.pub", options={"client_id": name})
        base = PipelineConfig(checkpoint=str(noise(folder / "shipped", 3, 10)))
        swap = StageSwap(self.handle, period_s=0.0)
        self.agent = BoxAgent(config, base, folder, self.handle, self.load, self.health, swap=swap)

    async def load(self, pipeline: PipelineConfig) -> NullStage:
        self.loaded.append(pipeline.engine.weights)
        assert (Path(pipeline.checkpoint) / GPT_FILE).stat().st_size in (LIGHT, HEAVY)
        return self.next_stage(len(self.loaded), pipeline.engine.weights)

    async def health(self) -> dict[str, Any]:
        return {"acoustic": [{"round_s": 0.0, "waiting": 0, "fingerprint": "f"}], "degrade": {"level": 0}}

    @property
    def runs(self) -> str:
        """The weights of the stage that serves."""
        return str(self.handle.stage.name)
