"""Config: what one environment's `args:` may say, strictly.

In:    the `args:` mapping of a YAML file
Out:   AppConfig, frozen
Owns:  nothing
Never: Ray, torch
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator, model_validator

from pipeline.config import PipelineConfig, StrictModel
from pipeline.errors import ConfigError
from pipeline.store.open import check_store_url
from serve.config.model_versions import ModelConfig, Version, VersionId, versions_of, wrong_models
from serve.resilience.circuit_breaker import BreakerConfig
from serve.resilience.degradation import DegradeConfig, Rung
from serve.resilience.quarantine import QuarantineConfig

DEPLOYMENTS = ("Ingress", "TextNormalizer", "AcousticModel", "Vocoder")
IMPORT_PATH = "serve.app:build_app"

STORE_FILE = "store.sqlite"
"""in $CHATTTS_HOME, where no store is named"""
PROJECT = Path(__file__).resolve().parents[2]


def store_url(url: str) -> str:
    """For pydantic, which takes a ValueError for a wrong value."""
    try:
        return check_store_url(url)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def redis_url(url: str) -> str:
    """For pydantic: a store's URL that is no file."""
    if "://" not in store_url(url):
        raise ValueError("the shared cache is redis://... or rediss://...")
    return url


class LimitsConfig(StrictModel):
    """What one ingress replica takes from the outside. Everything above is refused, quickly and with a reason."""

    max_in_flight: int = Field(64, ge=1, le=4096, description="requests inside one ingress replica at once")
    max_text_chars: int = Field(4096, ge=1, le=100_000, description="longest input [characters]")
    control_tags: Literal["never", "on_request", "by_default"] = Field(
        "on_request",
        description="whether [laugh], [uv_break] and the like in a text are control tags: when a request says "
        "allow_control_tags, unless it says otherwise, or never",
    )
    max_body_bytes: int = Field(1 << 20, ge=1024, le=64 << 20, description="largest request body [bytes]")
    body_timeout_s: float = Field(30.0, gt=0, le=600, description="the request body must have arrived after [s]")
    body_grace_s: float = Field(10.0, gt=0, le=600, description="after this long a body must keep the least rate [s]")
    body_min_bytes_per_s: float = Field(6400.0, ge=0, le=1 << 30, description="least rate of a body, on average [bytes/s]")
    max_receiving: int = Field(
        128,
        ge=1,
        le=65_536,
        description="bodies on their way into one ingress replica at once; beyond it the slowest is refused",
    )
    max_receiving_bytes: int = Field(64 << 20, ge=1024, le=1 << 34, description="what they hold together, likewise [bytes]")
    first_audio_timeout_s: float = Field(
        15.0, gt=0, le=600, description="no audio after this long is a 504; a request's deadline_ms replaces it [s]"
    )
    chunk_timeout_s: float = Field(30.0, gt=0, le=600, description="longest pause between two pieces of audio [s]")
    total_timeout_s: float = Field(600.0, gt=0, le=7200, description="longest a request may take in all [s]")
    stall_timeout_s: float = Field(30.0, gt=0, le=3600, description="a reader that takes nothing for this long is cut [s]")
    start_timeout_s: float = Field(
        900.0, gt=0, le=7200, description="the whole chain must have spoken once, weights loaded, after [s]"
    )


class VoicesConfig(StrictModel):
    """Which voices there are, and what clients may add."""

    catalogue: str = Field("configs/voices.yaml", description="the voices that are shipped; relative to the project")
    store: Annotated[str, AfterValidator(store_url)] | None = Field(
        None,
        description="where made voices are kept: redis://..., which all nodes see, or a file of this machine; "
        "null: store.sqlite in $CHATTTS_HOME",
    )
    refresh_s: float = Field(0.5, ge=0.05, le=60, description="every replica looks for new voices each [s]")
    max_voices: int = Field(1000, ge=0, le=100_000, description="made voices; each is held in memory by every replica")
    inline: bool = Field(False, description="whether a request may bring an embedding along as its voice, emb:...")
    clone: bool = Field(False, description="whether voices are made from recordings")
    max_upload_bytes: int = Field(10 << 20, ge=1024, le=64 << 20, description="largest recording [bytes]")
    loudness_lufs: float | None = Field(
        -20.0, ge=-40, le=-10, description="what the gain of a new voice brings it to; null: no gain [LUFS]"
    )
    making_timeout_s: float = Field(120.0, gt=0, le=600, description="a new voice must have spoken its preview after [s]")


class LanesConfig(StrictModel):
    """When a lane's first audio is promised where a request has no deadline_ms; standard: limits.first_audio_timeout_s."""

    interactive_s: float = Field(5.0, gt=0, le=600, description="first audio of an interactive request after [s]")
    bulk_s: float = Field(120.0, gt=0, le=600, description="first audio of a bulk request after [s]")


class KeysConfig(StrictModel):
    """Who may call."""

    open: bool | None = Field(
        None,
        description="true: clients without a key are served wherever they come from, for a service behind another door; false: "
        "nobody is; null: they are served from this machine, and only as long as there has never been a key",
    )
    store: Annotated[str, AfterValidator(store_url)] | None = Field(
        None,
        description="where the keys are: redis://..., where their quotas are counted for all replicas as well, or a file of "
        "this machine; null: voices.store",
    )
    refresh_s: float = Field(0.5, ge=0.05, le=60, description="every replica looks for new and revoked keys each [s]")


Host = Annotated[str, Field(pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])$")]
Origin = Annotated[str, Field(pattern=r"^[a-z][a-z0-9+.-]*://([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$")]


class HttpConfig(StrictModel):
    """Whom a browser may call for."""

    allowed_hosts: tuple[Host, ...] = Field(
        (),
        description="names of this machine, in lower case and without a port, that a request's Host may have while clients of "
        "this machine need no key; localhost and loopback addresses always may",
    )
    allowed_origins: tuple[Origin, ...] = Field(
        (),
        description="scheme://host[:port] of web pages that may call: they get CORS headers, and need no key where clients of "
        "this machine need none; none: the service's own page alone",
    )


class TracingConfig(StrictModel):
    """Where traces go. Off by default."""

    exporter: Literal["otlp", "console", "file"] | None = Field(
        None, description="otlp: to a collector over HTTP; console: the replicas' own output; file: JSON lines; null: no traces"
    )
    endpoint: str = Field("http://127.0.0.1:4318/v1/traces", pattern=r"^https?://\S+$", description="of the collector (otlp)")
    folder: str | None = Field(None, description="one file a process goes there (file); null: traces in $CHATTTS_HOME")
    sample: float = Field(1.0, ge=0, le=1, description="share of the requests that are traced")


class CacheConfig(StrictModel):
    """What has been sampled and may be heard again."""

    memory_mib: int = Field(
        64,
        ge=0,
        le=1 << 20,
        description="sampled steps each ingress replica keeps; 0: requests under way at once share theirs, no more [MiB]",
    )
    redis: Annotated[str, AfterValidator(redis_url)] | None = Field(
        None, description="redis://... that all replicas share; without persistence, evicting; null: each has its own alone"
    )
    ttl_s: float = Field(86_400.0, ge=1, le=31_536_000, description="Redis forgets an entry after [s]")
    idempotency_ttl_s: float = Field(
        86_400.0, ge=1, le=31_536_000, description="an Idempotency-Key stands for the body it first came with, for [s]"
    )


class OfferConfig(StrictModel):
    """Where the source of what runs here is. The licence (AGPL, 13) has it offered to everybody who uses the service."""

    url: str | None = Field(
        None, pattern=r"^https?://\S+$", description="of exactly this source; null: this service hands it out, /source.tar.gz"
    )
    commit: str | None = Field(None, pattern=r"^[0-9a-f]{7,64}$", description="which commit of it; null: not told")


class AppConfig(StrictModel):
    """The whole service."""

    source: str | None = Field(
        None, description="path of the file these args stand in: the whole file is checked before anything starts"
    )
    voices: VoicesConfig = Field(default_factory=VoicesConfig)
    keys: KeysConfig = Field(default_factory=KeysConfig)
    http: HttpConfig = Field(default_factory=HttpConfig)
    lanes: LanesConfig = Field(default_factory=LanesConfig)
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)
    models: dict[VersionId, ModelConfig] = Field(
        default_factory=dict, description="versions of the model, name@version; none: the one that pipeline describes"
    )
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    breaker: BreakerConfig = Field(default_factory=BreakerConfig)
    quarantine: QuarantineConfig = Field(default_factory=QuarantineConfig)
    degrade: DegradeConfig = Field(default_factory=DegradeConfig)
    tracing: TracingConfig = Field(default_factory=TracingConfig)
    cache: CacheConfig = Field(default_factory=CacheConfig)
    offer: OfferConfig = Field(default_factory=OfferConfig)

    @property
    def versions(self) -> tuple[Version, ...]:
        """Of the model, the first one first."""
        return versions_of(self.pipeline, self.models)

    @model_validator(mode="after")
    def _lighter_version_exists(self) -> "AppConfig":
        version = self.degrade.version
        if Rung.VERSION in self.degrade.rungs and version not in self.models:
            known = ", ".join(self.models) or "there are none"
            raise ValueError(f"degrade.version must be one of models ({known}), found {version}")
        return self

    @field_validator("models")
    @classmethod
    def _models_fit_together(cls, models: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
        if mistakes := list(wrong_models(models)):
            raise ValueError("; ".join(mistakes))
        return models


def project_path(path: str) -> Path:
    """An absolute path as it is, a relative one from the project's root: replicas start in folders of their own."""
    return PROJECT / path


def read_app_config(args: Mapping[str, Any], *, at: str = "args") -> AppConfig:
    """Validate `args`.

    Raises:
        ConfigError: every wrong key with its dotted path, what was found, what is allowed and the nearest key.
    """
    try:
        return AppConfig.model_validate(args)
    except ValidationError as error:
        raise ConfigError("\n".join(explain(AppConfig, error, at))) from error


def explain(model: type[BaseModel], error: ValidationError, at: str) -> list[str]:
    """One sentence a mistake."""
    sentences = []
    for mistake in error.errors(include_url=False):
        path = dotted(at, mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            sentences.append(unknown_key(path, _keys_beside(model, mistake["loc"])))
        else:
            sentences.append(f"{path}: {mistake['msg']}; found {_shown(mistake['input'])}")
    return sentences


def unknown_key(path: str, allowed: list[str]) -> str:
    """Name the key that is not ours, the nearest one that is, and all of them."""
    key = path.rpartition(".")[2]
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.0)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{path}: unknown key{hint} Allowed: {', '.join(sorted(allowed))}"


def dotted(at: str, loc: tuple[int | str, ...]) -> str:
    """args.pipeline.engine.slots, applications[0].name"""
    path = at
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _keys_beside(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    annotation: Any = model
    for part in loc[:-1]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = annotation.model_fields[str(part)].annotation
        else:  # dict[key, Model]
            annotation = get_args(annotation)[-1]
        if get_origin(annotation) in (Union, UnionType):  # Model | None
            annotation = get_args(annotation)[0]
    assert issubclass(annotation, BaseModel)
    return list(annotation.model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
