"""Local service: every stage and the ingress of a service in one process, and the servers before them.

In:    a checked configuration file
Out:   HTTP, WebSockets, gRPC; an exit code
Owns:  the process: its event loop, its signals, its end
Never: Ray; more than one replica; starting again after its own death, which is left to whoever has started it
"""

import asyncio
import inspect
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import uvicorn

from pipeline.config import PipelineConfig
from pipeline.errors import EngineDead
from pipeline.paths import cache_home
from serve.config.app_config import AppConfig
from serve.config.config_file import ConfigFile
from serve.config.model_versions import TEXT
from serve.ingress.ingress_replica import IngressReplica
from serve.local.local_handle import LocalHandle
from serve.local.process_config import ProcessFile
from serve.local.prometheus import Exposition
from serve.observability.tracing import check_tracing
from serve.protocols.api import create_api
from serve.protocols.outer_middleware import EarlyRefusal, ErrorEnvelope, StripRoutingHeaders
from serve.stages.acoustic_stage import AcousticStage
from serve.stages.process_exit import end_process
from serve.stages.replica_context import ReplicaContext
from serve.stages.text_stage import TextStage
from serve.stages.vocoder_stage import VocoderStage

INGRESS = "Ingress"
EDGE_AGENT = "serve.edge.box_agent"  # of a box of a fleet, which alone has its libraries
RIVA_SERVER = "serve.local.riva_server"  # gRPC is 13 MB, for who has a port for it
HEALTH_PERIOD_S = 1.0
DRAIN_PERIOD_S = 0.2
LONGEST_STREAM_S = 60.0
"""for which SIGTERM waits"""
CANCEL_S = 2.0
"""for which the server waits for requests that nobody waits for any more"""

LIMITS = {
    "replicas": "there is one of every stage, and nothing scales",
    "death": "a process that dies loses its streams; a supervisor starts it again, systemd for example",
}
"""what one process cannot do"""


class Server(uvicorn.Server):
    """A server that leaves the signals to its process."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen, and says so."""
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


class LocalService:
    """The parts of the service, once `start` has returned."""

    def __init__(self, file: ConfigFile) -> None:
        self._file, self._options = file, ProcessFile.model_validate(file.document)
        self._exposition = Exposition("chattts")
        self._handles: dict[str, LocalHandle] = {}
        self._contexts: dict[str, ReplicaContext] = {}
        self._agent: asyncio.Task[None] | None = None
        self._ingress = IngressReplica()
        self._is_stopping = False
        self._grpc: Any = None

    async def start(self) -> None:
        """Loads the weights, and synthesises a sentence.

        Raises:
            SynthesisError, CheckpointError: a part of it cannot.
        """
        check_tracing(self._file.app.tracing)
        app = self._file.app
        self._handles = {name: LocalHandle(stage) for name, stage in (await self._loaded(app)).items()}
        await self._ingress.start(self._context(INGRESS), app, self._handles, self._file.listens)
        if (options := self._options.grpc_options) is not None:
            server = import_module(RIVA_SERVER).riva_server
            self._grpc = await server(self._ingress.services, self._options.http_options.host, options.port)
        if app.edge.broker is not None:
            first = app.versions[0]
            agent = import_module(EDGE_AGENT).BoxAgent(
                app.edge,
                first.pipeline,
                cache_home(),
                self._handles[first.acoustic],
                partial(self._acoustic, first.acoustic),
                self._ingress.services.status.health,
            )
            self._agent = asyncio.create_task(agent.run())

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serves until a signal ends it: SIGINT at once, SIGTERM when every stream has ended."""
        options = self._options.http_options
        config = uvicorn.Config(
            self._application(),
            host=options.host,
            port=options.port,
            timeout_keep_alive=round(options.keep_alive_timeout_s),
            timeout_graceful_shutdown=round(CANCEL_S),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        server, loop = Server(config, on_ready), asyncio.get_running_loop()
        watching = asyncio.create_task(self._watch())
        leaving: list[asyncio.Task[None]] = []
        loop.add_signal_handler(signal.SIGINT, lambda: setattr(server, "should_exit", True))
        loop.add_signal_handler(signal.SIGTERM, lambda: leaving.append(asyncio.create_task(self._leave(server))))
        try:
            await server.serve()
        finally:
            watching.cancel()
            if self._agent is not None:
                self._agent.cancel()
                await asyncio.wait({self._agent}, timeout=CANCEL_S)
            if self._grpc is not None:
                await self._grpc.stop(CANCEL_S)
            await self._ingress.stop()

    def _application(self) -> Any:
        """Returns the routes behind what Serve's proxy would have around them."""
        routes = create_api(lambda: self._ingress.services)
        return StripRoutingHeaders(EarlyRefusal(ErrorEnvelope(routes), check=lambda: self._ingress.admission_check))

    async def _loaded(self, config: AppConfig) -> dict[str, Any]:
        """Returns the stages by name."""
        text, tracing = TextStage(), config.tracing
        await text.load(self._context(TEXT), config.pipelines, tracing)
        stages: dict[str, Any] = {TEXT: text}
        for version in config.versions:
            pipeline = version.pipeline
            stages[version.acoustic] = await self._acoustic(version.acoustic, pipeline)
            if version.owns_vocoder:
                vocoder = stages[version.vocoder] = VocoderStage()
                await vocoder.load(self._context(version.vocoder), pipeline.vocoder, pipeline.checkpoint, tracing)
        return stages

    async def _acoustic(self, name: str, pipeline: PipelineConfig) -> AcousticStage:
        """Returns a stage with these settings, beside the one that may serve under the same name."""
        stage, beside = AcousticStage(), pipeline.vocoder if pipeline.vocoder.is_beside_engine else None
        context = self._contexts.setdefault(name, self._context(name))  # one replica in metrics, whatever stage it has
        await stage.load(context, pipeline.engine, pipeline.checkpoint, self._file.app.tracing, beside)
        return stage

    def _context(self, name: str) -> ReplicaContext:
        replica = f"{name}#{secrets.token_hex(4)}"
        return ReplicaContext(
            replica=replica,
            new_series=self._exposition.new_series(name, replica),
            metrics_text=self._exposition.text,
            runtime_limits=LIMITS,
            is_stopping=lambda: self._is_stopping,
        )

    async def _watch(self) -> None:
        """Ends the process when a part of it can no longer serve, until cancelled."""
        while True:
            await asyncio.sleep(HEALTH_PERIOD_S)
            try:
                for part in (*(handle.stage for handle in self._handles.values()), self._ingress):
                    answer = part.check_health()
                    if inspect.isawaitable(answer):
                        await answer
            except EngineDead as death:
                end_process(death)
            except Exception as error:
                end_process(EngineDead(f"a check of its health failed ({type(error).__name__}: {error})"))

    async def _leave(self, server: Server) -> None:
        """Takes nothing new, and ends the server when every stream has ended, or after LONGEST_STREAM_S."""
        self._is_stopping = True
        ends = asyncio.get_running_loop().time() + LONGEST_STREAM_S
        while True:
            if not await self._ingress.drain() or asyncio.get_running_loop().time() > ends:
                break
            await asyncio.sleep(DRAIN_PERIOD_S)
        server.should_exit = True
