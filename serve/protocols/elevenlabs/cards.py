"""Cards: voices and models as ElevenLabs' clients list them.

In:    VoiceInfos, ModelSelector
Out:   mappings; ApiError
Never: a number that means nothing here: settings without effect are null
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from pipeline.voices.catalogue import VoiceInfo
from serve.config.app_config import LimitsConfig
from serve.speech.model_selection import ModelSelector
from serve.speech.schemas.base import Body, read_values

SETTINGS: Mapping[str, Any] = {
    "stability": None,
    "similarity_boost": None,
    "style": None,
    "use_speaker_boost": None,
    "speed": 1.0,
}
_CATEGORIES = {"upload": "cloned", "built-in": "premade"}
_STORED = {"personal": True, "workspace": True, "non-default": True, "default": False, "community": None}
"""their kind of a voice -> whether such a voice was stored by a client; None: none is of this kind"""


class VoicesQuery(Body):
    """The query of GET /v2/voices."""

    model_config = ConfigDict(extra="allow")

    search: str = ""
    sort: Literal["name", "created_at_unix"] | None = None
    sort_direction: Literal["asc", "desc"] = "desc"
    voice_type: Literal["personal", "community", "default", "workspace", "non-default", "non-community", "saved"] | None = None
    category: str | None = None
    voice_ids: str | None = Field(None, description="ids, separated by commas")
    page_size: int = Field(10, ge=1, le=100)
    next_page_token: int = Field(0, ge=0, description="as the page before says")
    include_total_count: bool = True


def voice_card(info: VoiceInfo, models: ModelSelector) -> dict[str, Any]:
    """Returns a voice; one without languages has those of the checkpoint."""
    languages = info.languages or models.languages()
    return {
        "voice_id": info.name,
        "name": info.title or info.name,
        "category": _CATEGORIES.get(info.origin, "generated"),
        "description": info.description or None,
        "labels": {"language": ", ".join(languages), **info.labels},
        "preview_url": f"/v1/audio/voices/{info.name}/preview",
        "settings": dict(SETTINGS),
        "available_for_tiers": [],
        "high_quality_base_model_ids": [],
        "is_owner": info.version is not None,
        "created_at_unix": int(datetime.fromisoformat(info.created_at).timestamp()) if info.created_at else 0,
    }


def page_of(
    infos: Iterable[VoiceInfo], models: ModelSelector, query: Mapping[str, str], names: Container[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Returns one page of GET /v2/voices, and the fields of the query without effect.

    Args:
        names: of the voices that are asked for; None: all.

    Raises:
        ApiError: 400, a field is wrong.
    """
    options = read_values(VoicesQuery, dict(query))
    cards = [(info, voice_card(info, models)) for info in infos if names is None or info.name in names]
    matches = [
        card
        for info, card in cards
        if options.search.lower() in " ".join(words_of(info, card)).lower()
        and options.category in (None, card["category"])
        and _STORED.get(options.voice_type or "", card["is_owner"]) == card["is_owner"]
    ]
    if options.sort is not None:
        by = options.sort
        matches.sort(key=lambda card: (card[by], card["name"].lower()) if by == "created_at_unix" else card["name"].lower())
        if options.sort_direction == "desc":
            matches.reverse()
    end = options.next_page_token + options.page_size
    has_more = end < len(matches)
    page = {
        "voices": matches[options.next_page_token : end],
        "has_more": has_more,
        "next_page_token": str(end) if has_more else None,
        **({"total_count": len(matches)} if options.include_total_count else {}),
    }
    return page, list(options.model_extra or {})


def words_of(info: VoiceInfo, card: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a search looks through: every name of a voice, and what its card says about it."""
    yield from (info.name, *info.aliases, card["name"], info.description, card["category"])
    yield from card["labels"].values()


def model_cards(models: ModelSelector, limits: LimitsConfig) -> list[dict[str, Any]]:
    """Returns all models."""
    return [
        {
            "model_id": name,
            "name": name,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "can_use_style": False,
            "can_use_speaker_boost": False,
            "maximum_text_length_per_request": limits.max_text_chars,
            "languages": [{"language_id": language, "name": language} for language in models.languages(name)],
        }
        for name in models.ids
    ]
