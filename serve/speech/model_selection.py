"""Model selection: the `model` field of a request becomes a version, and the body is adapted to that version.

In:    a SpeechBody and its client; the capabilities of each version's checkpoint
Out:   the version and the adapted body; the content of /v1/models
Owns:  nothing; the state is in Rollout
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pipeline.checkpoint.capabilities import ALL_CAPABILITIES, Capabilities
from pipeline.checkpoint.locate import Licence, licence_of
from pipeline.text.language_tags import DIALECT
from serve.access.caller import ANONYMOUS
from serve.config.model_versions import ONLY, CompatConfig, Version
from serve.errors import ApiError, ErrorSpec, bad_request
from serve.resilience.rollout import Rollout
from serve.speech.schemas.speech import DATED, MODELS, OTHER_MODELS, REFINE, RefineBody, SpeechBody

HABITS = {"oral": "oral", "laugh": "laugh", "pause": "break"}
"""field of RefineParams -> its name in a body and in ChatTTS's tokens: [oral_2], [break_4]"""
OF_HUBS = "openai/"
"""what hubs write before OpenAI's names"""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen version of the model, and the body adapted to it."""

    version: Version
    body: SpeechBody
    voice: str
    """id of the voice"""
    lost: tuple[str, ...] = ()
    """fields that the client set and the version does not support"""


class ModelSelector:
    """Chooses the version of the model for each request."""

    def __init__(
        self,
        rollout: Rollout,
        capabilities: Mapping[str, Capabilities] | None = None,
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            capabilities: version id -> capabilities of its checkpoint; a version without an entry has all.
            aliases: name of a model of another service -> a name or version here.
        """
        self.rollout = rollout
        self._own = frozenset((*rollout.names, *rollout.versions))
        self._meant = {name.lower(): name for name in self._own} | {name.lower(): meant for name, meant in aliases.items()}
        self._capabilities = capabilities or {}

    def apply_to_body(self, body: SpeechBody, *, caller: str, host: str | None, voice: str, strict: bool) -> Selection:
        """Returns the version for a request, and the body adapted to it.

        Args:
            caller: id of the key.
            host: address of the client.
            voice: id of the voice.
            strict: refuse fields that the version does not support instead of naming them in the reply.

        Raises:
            ApiError: there is no such model.
        """
        version = self.version(body.model, listener_of(caller, body.user, host), voice)
        adapted_body, lost = adapted(body, version.compat, self._capabilities.get(version.id, ALL_CAPABILITIES))
        if body.user is not None and not self._is_drawn(body.model, version):
            lost = (*lost, "user")
        if strict and lost:
            raise bad_request("unknown_field", f"{version.id} does not support {lost[0]}; leave it out", param=lost[0])
        return Selection(version, adapted_body, voice, lost)

    def _is_drawn(self, model: str, version: Version) -> bool:
        """True if the request's version was drawn among several, which `user` keeps the same."""
        shares = self.rollout.shares(version.name).values()
        return model not in self.rollout.versions and sum(share > 0 for share in shares) > 1

    def version(self, model: str, listener: str, voice: str) -> Version:
        """Returns the version that the client pinned, or the one drawn for this listener.

        Raises:
            ApiError: there is no such model.
        """
        name = self.meant(model)
        return self.rollout.versions.get(name) or self.rollout.choose(name, listener, voice)

    def meant(self, model: str) -> str:
        """Returns the name or version here that a client means, in any case, by a name of another service or of a hub.

        Raises:
            ApiError: there is no such model.
        """
        name = model if model in self._own else self._meant.get(model.lower()) or model.lower().removeprefix(OF_HUBS)
        if name in self._own:
            return name
        if name in (*MODELS, *OTHER_MODELS) or name.startswith(DATED):
            return self.rollout.names[0]
        raise ApiError(
            f"no such model; GET /v1/models lists them: {', '.join(self.ids)}",
            ErrorSpec(404, "not_found_error", "model_not_found", False),
            param="model",
        )

    @property
    def ids(self) -> tuple[str, ...]:
        """All values of `model`, except OpenAI's dated names."""
        return tuple(dict.fromkeys((*self.rollout.names, *self.rollout.versions, *MODELS)))

    def licence(self, model: str) -> Licence:
        """Returns the licence of the weights behind a name."""
        return licence_of(self._stable(model).pipeline.checkpoint)

    def languages(self, model: str = "") -> tuple[str, ...]:
        """Returns the languages of a version; of a name, those that all its versions in service speak.

        Args:
            model: empty: the first name.
        """
        stable = self._stable(model)
        if model in self.rollout.versions:
            return self._languages_of(model)
        in_service = [version for version, share in self.rollout.shares(stable.name).items() if share > 0]
        spoken = set(self._languages_of(stable.id)).intersection(*map(self._languages_of, in_service))
        return tuple(language for language in self._languages_of(stable.id) if language in spoken)

    def _languages_of(self, version: str) -> tuple[str, ...]:
        return self._capabilities.get(version, ALL_CAPABILITIES).languages

    def _stable(self, model: str) -> Version:
        """Returns the version behind a name: of several, the one with the largest share."""
        rollout = self.rollout
        if model not in rollout.versions:
            model = rollout.stable(model if model in rollout.names else rollout.names[0])
        return rollout.versions[model]

    def state(self, model: str) -> dict[str, Any]:
        """Returns the state in a model's card: share and health of a version, or the shares of all versions of a name."""
        rollout = self.rollout
        if set(rollout.versions) == {ONLY}:
            return {}
        if model in rollout.versions:
            return {"version": model.partition("@")[2], **rollout.summary(model)}
        name = model if model in rollout.names else rollout.names[0]
        return {"versions": {version: round(share, 4) for version, share in rollout.shares(name).items()}}


def listener_of(caller: str, user: str | None, host: str | None) -> str:
    """Returns the key of the draw: the API key and the user it acts for; without both, the client's address."""
    return f"{caller}\0{user or ''}" if user or caller != ANONYMOUS else host or ""


def adapted(
    body: SpeechBody, compat: CompatConfig, capabilities: Capabilities = ALL_CAPABILITIES
) -> tuple[SpeechBody, tuple[str, ...]]:
    """Returns the body within the version's limits, and the fields that the version does not support.

    Args:
        capabilities: of the version's checkpoint; the defaults of what `compat` leaves open.
    """
    changes: dict[str, Any] = {}
    lost = []
    fields: Mapping[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
    if not _or(compat.refine, capabilities.refine) and body.refine is not False:
        changes["refine"] = False
        lost.append("refine")
    elif isinstance(body.refine, RefineBody):
        habits = _untaught_habits(body.refine, capabilities.tags)
        if habits:
            changes["refine"] = body.refine.model_copy(update={name: getattr(REFINE, name) for name in habits})
            lost += [f"refine.{HABITS[name]}" for name in habits]
    if not _or(compat.speed_token, capabilities.speed_tokens) and body.speed_mode != "stretch":
        changes["speed_mode"] = "stretch"
        lost.append("speed_mode")
    if ("zh" if body.reading == DIALECT else body.reading) not in ("auto", *capabilities.languages):
        changes["language"] = "auto"
        lost.append("language")
    if body.retries and capabilities.alignment is None:
        changes["retries"] = 0
        lost.append("retries")
    if fields.get("allow_control_tags") and not (compat.control_tags and capabilities.tags):
        lost.append("allow_control_tags")
    return (body.model_copy(update=changes) if changes else body), tuple(lost)


def _untaught_habits(refine: RefineBody, tags: frozenset[str]) -> list[str]:
    """Returns the speaking habits that a client set and the checkpoint was not taught, by the names of RefineParams."""
    return [
        name
        for name, token in HABITS.items()
        if name in refine.model_fields_set and f"[{token}_{getattr(refine, name)}]" not in tags
    ]


def _or(declared: bool | None, default: bool) -> bool:
    return default if declared is None else declared
