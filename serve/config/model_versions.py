"""Model config: several versions of the model in one service, and how requests are shared out among them.

In:    `models:` of the args, and the `user_config:` of Ingress, which changes without a restart
Out:   Version: one line of acoustic model and vocoder; RoutesConfig
Owns:  the names of versions and of their deployments
Never: Ray, torch
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from pipeline.config import EngineConfig, PipelineConfig, SpeechConfig, StrictModel, TextConfig, VocoderConfig

ONLY = "chattts"
"""the one version of a service without `models:`"""

VersionId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,31}@[a-z0-9][a-z0-9._-]{0,31}$")]


class CompatConfig(StrictModel):
    """What clients may go on saying although this version does not know it, and what it takes for granted."""

    ssml: bool = Field(True, description="false: of an SSML document its words and breaks are spoken, without manners")
    control_tags: bool = Field(True, description="false: [laugh] and the like are dropped; true: as its checkpoint was taught")
    refine: bool | None = Field(None, description="false: the text is spoken as it is; null: as its checkpoint was taught")
    speed_token: bool | None = Field(None, description="false: every speed is a stretch; null: as its checkpoint was taught")
    sample_rate: int | None = Field(None, description="of a request that names none; null: the service's [Hz]")
    temperature: float | None = Field(None, ge=0.01, le=2.0, description="likewise")
    top_p: float | None = Field(None, ge=0.05, le=1.0, description="likewise")
    top_k: int | None = Field(None, ge=1, le=626, description="likewise")
    repetition_penalty: float | None = Field(None, ge=0.5, le=2.0, description="likewise")


class ModelConfig(StrictModel):
    """One version. A section that is named replaces the one of `pipeline:` as a whole."""

    checkpoint: str | None = Field(None, description="null: as in pipeline")
    text: TextConfig | None = None
    engine: EngineConfig | None = None
    vocoder: VocoderConfig | None = None
    speech: SpeechConfig | None = None
    vocoder_of: VersionId | None = Field(None, description="uses this version's Vocoder deployment instead of one of its own")
    compat: CompatConfig = CompatConfig()


class RollbackConfig(StrictModel):
    """When a version that is not the stable one loses its share of requests."""

    min_requests: int = Field(20, ge=1, le=100_000, description="judged from so many requests within window_s on, not before")
    window_s: float = Field(300.0, gt=0, le=86_400, description="how long a request counts [s]")
    error_margin: float = Field(0.05, ge=0, le=1, description="share of failed requests above the stable version's")
    latency_factor: float = Field(1.5, gt=1, le=100, description="median first audio, times the stable version's")
    hold_s: float = Field(600.0, gt=0, le=86_400, description="it stays away for [s], next time twice as long")


class ProbeConfig(StrictModel):
    """How every version is looked at."""

    period_s: float = Field(5.0, gt=0, le=600, description="between two looks [s]")
    gpu_mem_percent: float = Field(90.0, gt=0, le=100, description="fuller GPU memory is trouble")
    bad: int = Field(3, ge=1, le=100, description="looks in a row with trouble that take a version out")
    good: int = Field(6, ge=1, le=100, description="looks in a row without that bring it back")


class ShadowConfig(StrictModel):
    """Requests that are spoken once more by another version, for nobody, to compare."""

    version: VersionId
    share: float = Field(0.01, ge=0, le=1, description="of the requests other versions have spoken")
    at_most: int = Field(1, ge=1, le=64, description="shadow runs at once in an ingress replica; more are dropped")
    room: float = Field(0.5, gt=0, le=1, description="dropped when more than this share of limits.max_in_flight is inside")
    longest_s: float = Field(30.0, gt=0, le=600, description="longer audio is not compared [s]")


class RoutesConfig(StrictModel):
    """The `user_config:` of Ingress."""

    weights: dict[VersionId, Annotated[float, Field(ge=0, le=1_000_000)]] = Field(
        default_factory=dict,
        description="shares of the requests for a name, among its versions; none named: all to the first one",
    )
    shadow: ShadowConfig | None = None
    rollback: RollbackConfig = RollbackConfig()
    probe: ProbeConfig = ProbeConfig()


NOTHING_LACKING = CompatConfig()


@dataclass(frozen=True, slots=True)
class Version:
    """One line of stages."""

    id: str
    """name@version, or ONLY"""
    pipeline: PipelineConfig
    acoustic: str
    """name of its AcousticModel deployment"""
    vocoder: str
    """name of the Vocoder deployment it uses"""
    owns_vocoder: bool = True
    compat: CompatConfig = NOTHING_LACKING

    @property
    def name(self) -> str:
        """What its siblings are called too."""
        return self.id.partition("@")[0]

    def stage(self, kind: str) -> str:
        """What its breakers and their figures are called."""
        return kind if self.id == ONLY else f"{kind} {self.id}"


def versions_of(pipeline: PipelineConfig, models: Mapping[str, ModelConfig]) -> tuple[Version, ...]:
    """All versions, the first one first."""
    if not models:
        return (Version(ONLY, pipeline, "AcousticModel", "Vocoder"),)
    versions = []
    for name, model in models.items():
        said = {section: getattr(model, section) for section in ("checkpoint", "text", "engine", "vocoder", "speech")}
        own = pipeline.model_copy(update={section: value for section, value in said.items() if value is not None})
        if model.vocoder_of in models:
            owner = models[str(model.vocoder_of)]
            own = own.model_copy(update={"vocoder": owner.vocoder or pipeline.vocoder})
        versions.append(
            Version(
                name,
                own,
                f"AcousticModel-{name}",
                f"Vocoder-{model.vocoder_of or name}",
                owns_vocoder=model.vocoder_of is None,
                compat=model.compat,
            )
        )
    return tuple(versions)


def deployments_of(versions: Sequence[Version]) -> tuple[str, ...]:
    """The names of all deployments."""
    return ("Ingress", "TextNormalizer", *dict.fromkeys(name for one in versions for name in (one.acoustic, one.vocoder)))


def wrong_models(models: Mapping[str, ModelConfig]) -> Iterator[str]:
    """What no single model can know about itself."""
    for name, model in models.items():
        if model.vocoder_of is not None:
            owner = models.get(model.vocoder_of)
            if owner is None or owner.vocoder_of is not None or model.vocoder_of == name:
                yield f"{name}.vocoder_of: must be another version with a vocoder of its own, found {model.vocoder_of}"
            if model.vocoder is not None:
                yield f"{name}.vocoder: says how its own vocoder is, and vocoder_of that it has none: leave one out"


def wrong_routes(routes: RoutesConfig, versions: Sequence[Version]) -> Iterator[str]:
    """Versions nobody knows."""
    known = [version.id for version in versions if version.id != ONLY]
    named = [("weights", version) for version in routes.weights]
    if routes.shadow is not None:
        named.append(("shadow.version", routes.shadow.version))
    for where, version in named:
        if version not in known:
            yield f"{where}: {version} is not one of models: {', '.join(known) or 'there are none'}"
