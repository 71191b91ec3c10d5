"""Model desk: the `model` field of a request becomes a version, and what the version does not know is said in its words.

In:    a SpeechBody and who listens; what each version's checkpoint was taught
Out:   the version, the body as the version understands it, its SynthesisRequest; what /v1/models lists
Owns:  nothing; Rollout has the state
Never: Ray
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from pipeline.checkpoint.capabilities import EVERYTHING, Taught
from pipeline.checkpoint.locate import Licence, licence_of
from pipeline.config import PipelineConfig
from pipeline.types import Passage, Prosody, SynthesisRequest
from serve.access.authentication import ANONYMOUS, caller_of
from serve.config.model_versions import ONLY, CompatConfig, Version, versions_of
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.speech.schemas.speech import MODELS, SpeechBody
from serve.versions.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Fitted:
    """A body as one version understands it."""

    version: Version
    body: SpeechBody
    without: tuple[str, ...] = ()
    """fields the client set and the version does not know"""

    def fit(self, request: SynthesisRequest) -> SynthesisRequest:
        """The request, for this version."""
        if not self.version.compat.ssml and request.passages:
            request = replace(request, passages=tuple(map(plain, request.passages)))
        return replace(request, model=self.version.id, tags_taught=self.version.compat.control_tags)


class ModelSelector:
    """The models of one service."""

    def __init__(self, rollout: Rollout, taught: Mapping[str, Taught] | None = None) -> None:
        """
        Args:
            taught: id of a version -> what its checkpoint was taught; everything where there is no entry.
        """
        self.rollout = rollout
        self._taught = taught or {}

    def fit(self, body: SpeechBody, request: Request, voice: str, *, strict: bool) -> Fitted:
        """The version that speaks, and the body for it.

        Args:
            strict: refuse what the version does not know instead of naming it in the reply.

        Raises:
            ApiError: there is no such model.
        """
        host = None if request.client is None else request.client.host
        version = self.version(body.model, listener_of(caller_of(request).id, body.user, host), voice)
        fitted = Fitted(version, *adapted(body, version.compat, self._taught.get(version.id, EVERYTHING)))
        if strict and fitted.without:
            param = fitted.without[0]
            raise bad_request("unknown_field", f"{version.id} does not know {param}; leave it out", param=param)
        return fitted

    def version(self, model: str, listener: str, voice: str) -> Version:
        """A pinned version, or the one that speaks to this listener.

        Raises:
            ApiError
        """
        rollout = self.rollout
        if model in rollout.versions:
            return rollout.versions[model]
        if model in rollout.names:
            return rollout.choose(model, listener, voice)
        if model in MODELS or model.startswith("gpt-4o-mini-tts"):
            return rollout.choose(rollout.names[0], listener, voice)
        raise ApiError(
            f"no such model; GET /v1/models lists them: {', '.join(self.ids)}",
            ErrorSpec(404, "not_found_error", "model_not_found", False),
            param="model",
        )

    @property
    def ids(self) -> tuple[str, ...]:
        """Everything `model` may say, but for OpenAI's dated names."""
        return tuple(dict.fromkeys((*self.rollout.names, *self.rollout.versions, *MODELS)))

    def licence(self, model: str) -> Licence:
        """What may be done with the weights that speak under this name."""
        return licence_of(self._stable(model).pipeline.checkpoint)

    def languages(self, model: str = "") -> tuple[str, ...]:
        """What is spoken under this name; without one by the first."""
        return self._taught.get(self._stable(model).id, EVERYTHING).languages

    def _stable(self, model: str) -> Version:
        """The version a name stands for: of several the one most are sent to."""
        rollout = self.rollout
        if model not in rollout.versions:
            model = rollout.stable(model if model in rollout.names else rollout.names[0])
        return rollout.versions[model]

    def state(self, model: str) -> dict[str, Any]:
        """What a model's card says beyond its name: of a version its share and state, of a name the shares of its versions."""
        rollout = self.rollout
        if set(rollout.versions) == {ONLY}:
            return {}
        if model in rollout.versions:
            return {"version": model.partition("@")[2], **rollout.summary(model)}
        name = model if model in rollout.names else rollout.names[0]
        return {"versions": {version: round(share, 4) for version, share in rollout.shares(name).items()}}


def only_model() -> ModelSelector:
    """Of a service with one model."""
    return ModelSelector(Rollout(versions_of(PipelineConfig(), {})))


def listener_of(caller: str, user: str | None, host: str | None) -> str:
    """Who hears: the key and the user it speaks for; without both the address."""
    return f"{caller}\0{user or ''}" if user or caller != ANONYMOUS else host or ""


def adapted(body: SpeechBody, compat: CompatConfig, taught: Taught = EVERYTHING) -> tuple[SpeechBody, tuple[str, ...]]:
    """The body in the words of a version, and the client's fields that are lost on it.

    Args:
        taught: what the version's checkpoint was taught: the default of what `compat` leaves open.
    """
    changes: dict[str, Any] = {}
    lost = []
    given: Mapping[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
    for name in ("sample_rate", "temperature", "top_p", "top_k", "repetition_penalty"):
        default = getattr(compat, name)
        if default is not None and name not in given and not (name == "sample_rate" and _names_rate(body)):
            changes[name] = default
    if not _or(compat.refine, taught.refine) and body.refine is not False:
        changes["refine"] = False
        lost.append("refine")
    if not _or(compat.speed_token, taught.speed_tokens) and body.speed_mode != "stretch":
        changes["speed_mode"] = "stretch"
        lost.append("speed_mode")
    if body.language not in ("auto", *taught.languages):
        changes["language"] = "auto"
        lost.append("language")
    if given.get("allow_control_tags") and not (compat.control_tags and taught.control_tags):
        lost.append("allow_control_tags")
    return (body.model_copy(update=changes) if changes else body), tuple(lost)


def plain(passage: Passage) -> Passage:
    """The words, tags and silence of a passage."""
    return replace(passage, pronunciations=(), prosody=Prosody())


def _or(said: bool | None, default: bool) -> bool:
    return default if said is None else said


def _names_rate(body: SpeechBody) -> bool:
    return body.output_format is not None or body.response_format in ("ulaw", "alaw")
