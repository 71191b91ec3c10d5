"""Static batches: `@serve.batch` around the ChatTTS package's own batch call. `python -m scripts.bench.static_batch`

In:    POST /v1/audio/speech with `input` and `steps`; PUT /batch_size with a number
Out:   pcm, when the longest request of the batch has ended
Owns:  a Ray of its own, one replica with the ChatTTS package
Never: anything of this project but the package's loader

A batch runs as long as its longest row: ChatTTS continues to compute rows that have ended. With forced lengths every row
therefore runs to the longest row's steps and is cut to its own.
"""

import argparse
import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ChatTTS
import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pipeline.spec import HOP, SAMPLES_PER_STEP
from scripts.bench.upstream import exactly, load_chat, to_pcm

BATCH_WAIT_S = 0.03


@serve.deployment(name="StaticBatch", max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1})
class StaticBatch:
    """ChatTTS behind a queue."""

    def __init__(self, checkpoint: str, batch_size: int, threads: int, device: str) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._chat = self._thread.submit(self._load, Path(checkpoint), threads, device).result()
        self._speak.set_max_batch_size(batch_size)  # type: ignore[attr-defined]

    @staticmethod
    def _load(checkpoint: Path, threads: int, device: str) -> ChatTTS.Chat:
        torch.set_num_threads(threads)  # Ray gives a replica one; ChatTTS alone would take them all
        return load_chat(checkpoint, device)

    async def __call__(self, request: Request) -> Response:
        if request.url.path == "/ready":
            return JSONResponse({"status": "ready"})
        body = await request.json()
        if request.method == "PUT":
            self._speak.set_max_batch_size(int(body))  # type: ignore[attr-defined]
            return JSONResponse(int(body))
        return Response(await self._speak((body["input"], int(body["steps"]))), media_type="audio/pcm")

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=BATCH_WAIT_S)
    async def _speak(self, batch: list[tuple[str, int]]) -> list[bytes]:
        return await asyncio.wrap_future(self._thread.submit(self._infer, batch))

    def _infer(self, batch: list[tuple[str, int]]) -> list[bytes]:
        texts, steps = [text for text, _ in batch], [steps for _, steps in batch]
        audio = self._chat.infer(
            texts, lang="en", skip_refine_text=True, split_text=False, params_infer_code=exactly(max(steps))
        )
        return [to_pcm(_cut(row, count)) for row, count in zip(audio, steps, strict=True)]


def _cut(row: NDArray[np.float32], steps: int) -> NDArray[np.float32]:
    return row[: SAMPLES_PER_STEP * steps - HOP]


def main() -> int:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description="Serve the ChatTTS package under @serve.batch, for comparison.")
    parser.add_argument("checkpoint", type=Path, help="folder that holds asset/")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--temp-dir", type=Path, required=True, help="Ray's own folder")
    args = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    ray.init(address="local", num_cpus=4, include_dashboard=False, _temp_dir=str(args.temp_dir), log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    # A replica sees a GPU only if it asks for one.
    replica = StaticBatch.options(ray_actor_options={"num_cpus": 1, "num_gpus": int(args.device == "cuda")})  # type: ignore[attr-defined]
    application = replica.bind(str(args.checkpoint), args.batch_size, args.threads, args.device)
    serve.run(application, name="static_batch")
    stop.wait()
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
