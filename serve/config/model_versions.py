"""Model versions: several versions of the model in one service, and how requests are divided among them.

In:    `models:` of the args, and the `user_config:` of Ingress, which changes without a restart
Out:   Version: one pair of acoustic model and vocoder; RoutesConfig
Owns:  the names of versions and of their deployments
Never: Ray
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from pipeline.config import EngineConfig, PipelineConfig, SpeechConfig, StrictModel, VocoderConfig
from serve.config.policies import VersionId

ONLY = "chattts"  # the one version of a service without `models:`
TEXT = "TextNormalizer"  # the stage of the text front end


class CompatConfig(StrictModel):
    """Fields that this version accepts without supporting them."""

    ssml: bool = Field(True, description="false: of an SSML document only the words and breaks have an effect, not the prosody")
    control_tags: bool = Field(True, description="false: [laugh] and the like are dropped; true: as the checkpoint declares")
    refine: bool | None = Field(None, description="false: texts are never refined; null: as the checkpoint declares")
    speed_token: bool | None = Field(
        None, description="false: speed is always a time-stretch, never a control token; null: as the checkpoint declares"
    )


class ModelConfig(StrictModel):
    """One version. A section named here replaces the whole section of `pipeline:`."""

    checkpoint: str | None = Field(None, description="checkpoint of this version; null: pipeline.checkpoint")
    engine: EngineConfig | None = Field(None, description="null: pipeline.engine")
    vocoder: VocoderConfig | None = Field(None, description="null: pipeline.vocoder")
    speech: SpeechConfig | None = Field(None, description="null: pipeline.speech")
    vocoder_of: VersionId | None = Field(
        None, description="version whose Vocoder deployment this version uses; null: one of its own"
    )
    compat: CompatConfig = CompatConfig()


class ProbeConfig(StrictModel):
    """Health probes of every version."""

    period_s: float = Field(5.0, gt=0, le=600, description="time between two probes [s]")
    max_gpu_memory_percent: float = Field(90.0, gt=0, le=100, description="GPU memory in use above which a probe fails [%]")


class RoutesConfig(StrictModel):
    """The `user_config:` of Ingress."""

    weights: dict[VersionId, Annotated[float, Field(ge=0, le=1_000_000)]] = Field(
        default_factory=dict,
        description="relative share of requests per version of a name; empty: all to the first version",
    )
    probe: ProbeConfig = ProbeConfig()


NOTHING_LACKING = CompatConfig()


@dataclass(frozen=True, slots=True)
class Version:
    """One model version and the deployments that serve it."""

    id: str
    """name@version, or ONLY"""
    pipeline: PipelineConfig
    acoustic: str
    """name of its AcousticModel deployment"""
    vocoder: str
    """name of the deployment that decodes its steps: a Vocoder, or its AcousticModel"""
    owns_vocoder: bool = True
    compat: CompatConfig = NOTHING_LACKING

    @property
    def name(self) -> str:
        """The part of the id that all versions of one model share."""
        return self.id.partition("@")[0]

    @property
    def decodes_itself(self) -> bool:
        """True if its AcousticModel decodes what it generates."""
        return self.pipeline.vocoder.is_beside_engine

    def stage(self, kind: str) -> str:
        """Returns the name of a stage in breakers and metrics."""
        return kind if self.id == ONLY else f"{kind} {self.id}"


def versions_of(pipeline: PipelineConfig, models: Mapping[str, ModelConfig]) -> tuple[Version, ...]:
    """Returns all versions, in the order of the file."""
    if not models:
        return (_version(ONLY, pipeline, "AcousticModel", "Vocoder"),)
    versions = []
    for name, model in models.items():
        own_sections = {section: getattr(model, section) for section in ("checkpoint", "engine", "vocoder", "speech")}
        own = pipeline.model_copy(update={section: value for section, value in own_sections.items() if value is not None})
        if model.vocoder_of in models:
            owner = models[str(model.vocoder_of)]
            own = own.model_copy(update={"vocoder": owner.vocoder or pipeline.vocoder})
        versions.append(
            _version(
                name,
                own,
                f"AcousticModel-{name}",
                f"Vocoder-{model.vocoder_of or name}",
                owns_vocoder=model.vocoder_of is None,
                compat=model.compat,
            )
        )
    return tuple(versions)


def _version(
    name: str,
    pipeline: PipelineConfig,
    acoustic: str,
    vocoder: str,
    *,
    owns_vocoder: bool = True,
    compat: CompatConfig = NOTHING_LACKING,
) -> Version:
    if pipeline.vocoder.is_beside_engine:
        vocoder, owns_vocoder = acoustic, False
    return Version(name, pipeline, acoustic, vocoder, owns_vocoder, compat)


def wrong_models(pipeline: PipelineConfig, models: Mapping[str, ModelConfig]) -> Iterator[str]:
    """Yields the mistakes that show only when all models are seen together."""
    for name, model in models.items():
        if model.vocoder_of is not None:
            owner = models.get(model.vocoder_of)
            if owner is None or owner.vocoder_of is not None or model.vocoder_of == name:
                yield f"{name}.vocoder_of: must be another version with a vocoder of its own, found {model.vocoder_of}"
            elif (owner.vocoder or pipeline.vocoder).is_beside_engine:
                yield (
                    f"{name}.vocoder_of: {model.vocoder_of} decodes beside its engine (vocoder.placement with_acoustic), where "
                    "no other version reaches its vocoder: remove vocoder_of"
                )
            if model.vocoder is not None:
                yield f"{name}.vocoder: describes a vocoder of its own, but vocoder_of names another one: remove one of the two"


def wrong_routes(routes: RoutesConfig, versions: Sequence[Version]) -> Iterator[str]:
    """Yields the versions that the weights name and `models:` does not."""
    known = [version.id for version in versions if version.id != ONLY]
    for version in routes.weights:
        if version not in known:
            yield f"weights: {version} is not one of models: {', '.join(known) or 'there are none'}"
