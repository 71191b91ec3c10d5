"""Tracing: one trace per request, across the processes that work for it. OpenTelemetry; off by default.

In:    TracingConfig, what the stages do
Out:   spans: speech -> text.plan, acoustic.generate -> queue, prefill, first_steps, vocoder.call
Owns:  the tracer of this process
Never: Ray; text, audio, names of voices; a decision of the client's: its `traceparent` is continued, its sampling is not

The ingress decides by `tracing.sample_ratio`; the other stages trace what it traces. What travels through a handle is W3C's
traceparent, empty when nothing is traced. Serve's own tracing is not used: it writes the whole URL into its spans, names
of voices included.
"""

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import cast

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pipeline.errors import ConfigError
from pipeline.types import Prompt, StepBlock
from serve.config.app_config import TracingConfig
from serve.config.folders import traces_folder

SERVICE = "chattts-serve"
OTLP = "opentelemetry.exporter.otlp.proto.http"  # an optional dependency
EVERY_MS = 1000  # how long an ended span waits for others

Attributes = Mapping[str, str | int | float | bool]

_W3C = TraceContextTextMapPropagator()


def check_tracing(config: TracingConfig) -> None:
    """Check that the configured exporter can be used, before anything starts.

    Raises:
        ConfigError: the exporter's package is missing.
    """
    if config.exporter == "otlp" and not _installed(OTLP):
        raise ConfigError(
            "args.tracing.exporter: otlp needs a package that is not installed: "
            "pip install 'chattts-serve[tracing]' on every node; console and file need none"
        )


def carried() -> str:
    """Returns the traceparent of the present span, for the next process; empty when nothing is traced."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class Tracing:
    """Begins and ends the spans of one process."""

    def __init__(self, config: TracingConfig | None = None, stage: str = "", replica: str = "") -> None:
        self._provider: TracerProvider | None = None
        self._tracer: trace.Tracer = trace.NoOpTracer()
        if config is None or config.exporter is None:
            return
        resource = Resource({"service.name": SERVICE, "service.instance.id": replica, "chattts.stage": stage})
        sampler = TraceIdRatioBased(config.sample_ratio) if stage == "Ingress" else ALWAYS_ON
        self._provider = TracerProvider(sampler=sampler, resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(_exporter(config, stage), schedule_delay_millis=EVERY_MS))
        self._tracer = self._provider.get_tracer(SERVICE)

    @contextmanager
    def request(self, request_id: str, traceparent: str | None) -> Generator[trace.Span, None, None]:
        """Span of a whole request; calls within the block become its children."""
        parent = _W3C.extract({} if traceparent is None else {"traceparent": traceparent})
        span = self._tracer.start_span("speech", parent, trace.SpanKind.SERVER, {"request": request_id})
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield span

    @contextmanager
    def within(self, traceparent: str, name: str, attributes: Attributes | None = None) -> Generator[trace.Span, None, None]:
        """Span of one stage, child of `traceparent`; a no-op span if it is empty."""
        span = self._begin(traceparent, name, attributes)
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            raise
        finally:
            span.end()

    @contextmanager
    def generation(self, traceparent: str, prompt: Prompt) -> Generator[Callable[[StepBlock], None], None, None]:
        """Span of one segment in the engine. Yields a function that records each of its blocks."""
        began = time.time_ns()
        steps = 0
        attributes: Attributes = {"segment": prompt.segment.index, "positions": len(prompt.ids), "head": prompt.head.value}

        with self.within(traceparent, "acoustic.generate", attributes) as span:

            def record(block: StepBlock) -> None:
                nonlocal steps
                steps += len(block.codes)
                if not span.is_recording():
                    return
                span.set_attribute("steps", steps)
                if block.finish is not None:
                    span.set_attribute("finish", block.finish.value)
                if block.admission is not None:
                    placed = began + round(1e9 * block.admission.waited_s)
                    prefilled = placed + round(1e9 * block.admission.prefill_s)
                    self._past(span, "queue", began, placed)
                    self._past(span, "prefill", placed, prefilled)
                    self._past(span, "first_steps", prefilled, time.time_ns())

            yield record

    def vocoder_call(self, traceparent: str, steps: int) -> AbstractContextManager[trace.Span]:
        """Span of one call of the vocoder, child of `traceparent`."""
        return self.within(traceparent, "vocoder.call", {"steps": steps})

    def close(self) -> None:
        """Export the spans that wait, and end the tracer."""
        if self._provider is not None:
            self._provider.shutdown()

    def _begin(self, traceparent: str, name: str, attributes: Attributes | None) -> trace.Span:
        if not traceparent:
            return trace.INVALID_SPAN
        return self._tracer.start_span(name, _W3C.extract({"traceparent": traceparent}), attributes=attributes)

    def _past(self, parent: trace.Span, name: str, began_ns: int, ended_ns: int) -> None:
        self._tracer.start_span(name, trace.set_span_in_context(parent), start_time=began_ns).end(max(ended_ns, began_ns))


def _exporter(config: TracingConfig, stage: str) -> SpanExporter:
    match config.exporter:
        case "otlp":
            # Looked up here: the package is optional.
            module = importlib.import_module(f"{OTLP}.trace_exporter")
            return cast(SpanExporter, module.OTLPSpanExporter(endpoint=config.endpoint))
        case "file":
            folder = traces_folder(config)
            folder.mkdir(parents=True, exist_ok=True)
            lines = (folder / f"{stage}-{os.getpid()}.jsonl").open("a", encoding="utf-8")
            exporter = ConsoleSpanExporter(out=lines, formatter=lambda span: span.to_json(indent=None) + "\n")
            exporter.shutdown = lines.close  # type: ignore[method-assign]  # its own leaves the file open
            return exporter
        case _:
            return ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")


def _installed(module: str) -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False
