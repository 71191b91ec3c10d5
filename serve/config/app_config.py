"""Config: the `args:` of one environment, checked strictly.

In:    the `args:` mapping of a YAML file
Out:   AppConfig, frozen
Never: Ray
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from pipeline.config import PipelineConfig, StrictModel
from pipeline.errors import ConfigError
from serve.config.bounded import LoudnessLufs
from serve.config.contradictions import contradictions
from serve.config.edge import EdgeConfig
from serve.config.hosts import network
from serve.config.jobs import JobsConfig
from serve.config.key_settings import KeysConfig
from serve.config.messages import explain
from serve.config.model_versions import TEXT, ModelConfig, Version, versions_of, wrong_models
from serve.config.policies import DegradationStep, DegradeConfig, VersionId
from serve.config.protocols import WyomingConfig
from serve.config.stores import redis_url, store_url

FOREIGN_MODELS = (
    *("orpheus", "canopylabs/orpheus-3b-0.1-ft", "hexgrad/Kokoro-82M", "speaches-ai/Kokoro-82M-v1.0-ONNX", "fishaudio/s2-pro"),
    *("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign"),
    *("tts", "tts-hd"),  # of Azure's deployments
    *("nari-labs/Dia-1.6B-0626", "nari-labs/Dia2-2B", "ResembleAI/chatterbox", "openbmb/VoxCPM2", "vibevoice", "speech-1"),
)
"""ids of the first examples of other servers, which their clients are fixed on"""

IMPORT_PATH = "serve.app:build_app"

PROJECT = Path(__file__).resolve().parents[2]
UNREAD_BYTES_PER_REPLY = 1 << 20  # counted for each beside its audio, so that max_unread_bytes bounds their number too
UNREAD_SHARES = 8  # one reply may hold an eighth of what all may hold
LEAST_UNREAD_BYTES = 2 * UNREAD_SHARES * UNREAD_BYTES_PER_REPLY


def unread_bytes(value: int) -> int:
    """Returns a number of bytes that is enough for one reply, or 0, for pydantic.

    Raises:
        ValueError: it is too small to have an effect.
    """
    if 0 < value < LEAST_UNREAD_BYTES:
        raise ValueError(f"it must be 0 or at least {LEAST_UNREAD_BYTES}")
    return value


class LimitsConfig(StrictModel):
    """Limits per ingress replica. Requests beyond them are refused at once, with a reason."""

    max_in_flight: int = Field(
        64,
        ge=1,
        le=4096,
        description="requests in progress per ingress replica; more than engine.slots + engine.max_waiting for each "
        "AcousticModel replica are refused by the engine instead, which costs more",
    )
    max_text_chars: int = Field(4096, ge=1, le=100_000, description="longest input text [characters]")
    control_tags: Literal["never", "on_request", "by_default"] = Field(
        "on_request",
        description="[laugh], [uv_break] and the like in a text; never: not control tags; on_request: control tags if the "
        "request sets allow_control_tags; by_default: control tags unless the request sets it to false",
    )
    body_timeout_s: float = Field(30.0, gt=0, le=600, description="time in which a request body must arrive [s]")
    body_min_bytes_per_s: float = Field(
        6400.0, ge=0, le=1 << 30, description="lowest average rate of a request body, after its first 10 s [bytes per s]"
    )
    first_audio_timeout_s: float = Field(
        15.0, gt=0, le=600, description="longest time to the first audio, then a 504; a request's deadline_ms replaces it [s]"
    )
    chunk_timeout_s: float = Field(30.0, gt=0, le=600, description="longest time between two chunks of audio [s]")
    total_timeout_s: float = Field(600.0, gt=0, le=7200, description="longest time per request [s]")
    resume_s: float = Field(
        600.0,
        ge=0,
        le=86_400,
        description="how long after its beginning a reply can be resumed; 0: replies have no X-Resume [s]",
    )
    stall_timeout_s: float = Field(
        30.0, gt=0, le=3600, description="time after which a client that reads nothing is disconnected [s]"
    )
    max_unread_bytes: Annotated[int, AfterValidator(unread_bytes)] = Field(
        64 << 20,
        ge=0,
        le=1 << 34,
        description="audio that one ingress replica generates ahead of clients that read slowly, one reply up to an eighth of "
        "it; beyond that speech waits for its reader; 0: it always does [bytes]",
    )
    start_timeout_s: float = Field(
        900.0, gt=0, le=7200, description="longest time to the first synthesis after a start, loading of weights included [s]"
    )

    max_body_bytes: ClassVar[int] = 1 << 20
    """of any body but a job's and a recording's: twice the longest text that max_text_chars allows"""


class ConversationsConfig(StrictModel):
    """Conversations over a WebSocket. What they speak counts against the limits above, part by part; silence does not."""

    max_sockets: int = Field(256, ge=0, le=65_536, description="open sockets per ingress replica; 0: none are accepted")
    idle_timeout_s: float = Field(
        600.0, gt=0, le=86_400, description="time without a message and without speech after which a socket is closed [s]"
    )

    max_contexts: ClassVar[int] = 8
    """open at once per socket: one listener hears one"""
    lead_s: ClassVar[float] = 5.0
    """audio sent ahead of playback before the next part is generated, for contexts that do not say it"""
    max_lead_s: ClassVar[float] = 60.0
    """that a context may ask for: more is generated for nothing when its listener interrupts"""


class VoicesConfig(StrictModel):
    """Shipped voices, stored voices, and what clients may add."""

    catalogue: str = Field("configs/voices.yaml", description="file of the shipped voices, relative to the project")
    store: Annotated[str, AfterValidator(store_url)] | None = Field(
        None,
        description="where voices created by clients are kept: redis://... or rediss://..., shared by all nodes, "
        "or a file on this machine; null: store.sqlite in $CHATTTS_HOME",
    )
    unknown: Literal["refuse", "default"] = Field(
        "refuse",
        description="default: a request for a voice that is not there speaks with the default one, and its reply names the "
        "field among those without effect",
    )
    max_voices: int = Field(1000, ge=0, le=100_000, description="stored voices; every replica holds all of them in memory")
    inline: bool = Field(False, description="true: a request may pass a speaker embedding as its voice, emb:...")
    clone: bool = Field(False, description="true: voices can be created from recordings")
    max_upload_bytes: int = Field(10 << 20, ge=1024, le=64 << 20, description="largest recording [bytes]")
    loudness_lufs: LoudnessLufs | None = Field(
        -20.0, description="loudness to which the gain of a new voice brings it; null: no gain [LUFS]"
    )


class LanesConfig(StrictModel):
    """Longest time to the first audio per lane, for requests without deadline_ms; standard: limits.first_audio_timeout_s."""

    interactive_timeout_s: float = Field(
        5.0, gt=0, le=600, description="longest time to the first audio of an interactive request [s]"
    )
    bulk_timeout_s: float = Field(120.0, gt=0, le=600, description="longest time to the first audio of a bulk request [s]")


Host = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])$")]
WebAddress = Annotated[str, Field(pattern=r"^https?://\S+$", max_length=2000)]
Origin = Annotated[
    str,
    Field(
        pattern=r"^[a-z][a-z0-9+.-]*://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$|^(moz|chrome|safari-web)-extension://\*$"
    ),
]


class HttpConfig(StrictModel):
    """Web pages that may call the service from a browser, and what the service's own page leads operators to."""

    allowed_hosts: tuple[Host, ...] = Field(
        (),
        description="names of this machine, in lower case and without a port, that the Host header may have while clients on "
        "this machine need no key; localhost and loopback addresses are always allowed",
    )
    allowed_origins: tuple[Origin, ...] = Field(
        (),
        description="scheme://host[:port] of web pages that may call, or moz-extension://*, chrome-extension://* or "
        "safari-web-extension://*: they get CORS headers, and need no key where clients on this machine need none; empty: only "
        "the service's own page",
    )
    trusted_proxies: tuple[Annotated[str, AfterValidator(network)], ...] = Field(
        (),
        description="addresses and networks (CIDR) of the balancers in front, whose X-Forwarded-For is believed, and of this "
        "service's other machines; empty: whoever connects is the client",
    )
    ray_dashboard: WebAddress | None = Field(None, description="address of Ray's dashboard, for a link in the page's status")
    grafana: WebAddress | None = Field(None, description="address of Grafana, for a link in the page's status")


class TracingConfig(StrictModel):
    """Export of traces. Off by default."""

    exporter: Literal["otlp", "console", "file"] | None = Field(
        None,
        description="otlp: to a collector over HTTP; console: the output of the replicas; file: JSON lines; null: no traces",
    )
    endpoint: str = Field(
        "http://127.0.0.1:4318/v1/traces", pattern=r"^https?://\S+$", description="URL of the collector (otlp)"
    )
    folder: str | None = Field(None, description="folder that gets one file per process (file); null: traces in $CHATTTS_HOME")
    sample_ratio: float = Field(1.0, ge=0, le=1, description="share of the requests that are traced")


class CacheConfig(StrictModel):
    """Sampled steps and idempotent requests that can be answered again without the model."""

    memory_mib: int = Field(
        64,
        ge=0,
        le=1 << 20,
        description="sampled steps kept per ingress replica; 0: only requests in progress at the same time share theirs [MiB]",
    )
    redis: Annotated[str, AfterValidator(redis_url)] | None = Field(
        None,
        description="redis://... or rediss://... shared by all replicas, a Redis of its own, which evicts, not on disk; "
        "null: one cache per replica",
    )
    ttl_s: float = Field(86_400.0, ge=1, le=31_536_000, description="lifetime of an entry in Redis [s]")
    idempotency_ttl_s: float = Field(
        86_400.0, ge=1, le=31_536_000, description="how long an Idempotency-Key belongs to the body it was first sent with [s]"
    )


class SourceOfferConfig(StrictModel):
    """Address of the source of this service, which the licence (AGPL, 13) requires to be offered to every user."""

    url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="URL of exactly this source; null: the service itself serves /source.tar.gz",
    )
    commit: str | None = Field(None, pattern=r"^[0-9a-f]{7,64}$", description="commit of that source; null: not stated")


class TextConfig(StrictModel):
    """The text front end."""

    placement: Literal["separate", "ingress"] = Field(
        "separate",
        description="separate: a deployment of its own, TextNormalizer, which scales on its own; ingress: in every replica of "
        "Ingress, so that a request passes one process less; texts are read in a child process in both",
    )


class AppConfig(StrictModel):
    """The whole service."""

    source: str | None = Field(
        None, description="path of the file that contains these args; the whole file is checked before anything starts"
    )
    voices: VoicesConfig = Field(default_factory=VoicesConfig)
    keys: KeysConfig = Field(default_factory=KeysConfig)
    http: HttpConfig = Field(default_factory=HttpConfig)
    wyoming: WyomingConfig = Field(default_factory=WyomingConfig)
    lanes: LanesConfig = Field(default_factory=LanesConfig)
    text: TextConfig = Field(default_factory=TextConfig)
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)
    models: dict[VersionId, ModelConfig] = Field(
        default_factory=dict, description="model versions by name@version; empty: one version, described by pipeline"
    )
    model_aliases: dict[str, str] = Field(
        default_factory=lambda: dict.fromkeys(FOREIGN_MODELS, "chattts"),
        description="name of another service's model, in any case -> a name or version here",
    )
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    conversations: ConversationsConfig = Field(default_factory=ConversationsConfig)
    jobs: JobsConfig = Field(default_factory=JobsConfig)
    degrade: DegradeConfig = Field(default_factory=DegradeConfig)
    tracing: TracingConfig = Field(default_factory=TracingConfig)
    cache: CacheConfig = Field(default_factory=CacheConfig)
    edge: EdgeConfig = Field(default_factory=EdgeConfig)
    source_offer: SourceOfferConfig = Field(default_factory=SourceOfferConfig)

    @property
    def versions(self) -> tuple[Version, ...]:
        """All model versions, in the order of the file."""
        return versions_of(self.pipeline, self.models)

    @property
    def pipelines(self) -> dict[str, PipelineConfig]:
        """Version id -> its pipeline."""
        return {version.id: version.pipeline for version in self.versions}

    @property
    def deployments(self) -> tuple[str, ...]:
        """The names of all deployments."""
        stages = (stage for version in self.versions for stage in (version.acoustic, version.vocoder))
        return tuple(dict.fromkeys(("Ingress", *((TEXT,) if self.text.placement == "separate" else ()), *stages)))

    @model_validator(mode="after")
    def _lighter_version_exists(self) -> "AppConfig":
        version = self.degrade.version
        if DegradationStep.VERSION in self.degrade.steps and version not in self.models:
            known = ", ".join(self.models) or "there are none"
            raise ValueError(f"degrade.version must be one of models ({known}), found {version}")
        return self

    @model_validator(mode="after")
    def _models_fit_together(self) -> "AppConfig":
        if mistakes := list(wrong_models(self.pipeline, self.models)):
            raise ValueError("; ".join(mistakes))
        return self

    @model_validator(mode="after")
    def _numbers_fit_together(self) -> "AppConfig":
        if mistakes := list(contradictions(self)):
            raise ValueError("; ".join(mistakes))
        return self


def project_path(path: str) -> Path:
    """Returns an absolute path as it is, a relative one below the project: replicas start in folders of their own."""
    return PROJECT / path


def read_app_config(args: Mapping[str, Any], *, at: str = "args") -> AppConfig:
    """Validates `args`.

    Raises:
        ConfigError: names every wrong key: its dotted path, what was found, what is allowed and the nearest key.
    """
    try:
        return AppConfig.model_validate(args)
    except ValidationError as error:
        raise ConfigError("\n".join(explain(AppConfig, error, at))) from error
