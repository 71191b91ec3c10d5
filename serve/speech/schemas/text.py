"""Text schemas: a text as clients send it, and its form in the domain.

In:    TextBody
Out:   WrittenText
Never: a client's text in an error message
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

import pydantic.dataclasses
from pydantic import ConfigDict, Field, model_validator

from pipeline.errors import InvalidSsml, TextTooLong, UnknownVoice
from pipeline.text.language_tags import KNOWN, reading_of
from pipeline.text.lexicon.lexicon_library import LEXICON_ID, MAX_ENTRIES, Entries
from pipeline.text.markup.ssml import Document, parse
from pipeline.text.markup.ssml_elements import CHOSEN_VOICES
from pipeline.text.normalize import PLAIN, NormalizeOptions
from pipeline.types import LexiconEntry, Mark, Passage, PronunciationKind, Prosody, Turn
from serve.config.app_config import LimitsConfig
from serve.errors import bad_request
from serve.speech.schemas.base import Body

UNSUPPORTED_MARKUP = "unsupported_markup"
"""warning: passages whose voice, prosody or pronunciation the version of the model does not support"""

UNKNOWN_VOICE = "unknown_voice"
"""warning: passages for whose voice, which is not there, the default one speaks"""


class SoundBody(Body):
    """How a word sounds: other text, or pinyin with tone numbers."""

    alias: str | None = Field(None, min_length=1, max_length=200, description="other text, spoken in its place")
    pinyin: str | None = Field(None, min_length=1, max_length=200, description="syllables with tone numbers: chong2 qing4")

    @model_validator(mode="after")
    def _is_one_sound(self) -> "SoundBody":
        if (self.alias is None) == (self.pinyin is None):
            raise ValueError("give either alias or pinyin")
        return self


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class NormalizeBody(NormalizeOptions):
    """What is rewritten before it is spoken. What is off is read sign by sign."""


Word = Annotated[str, Field(min_length=1, max_length=64)]
Sounds = dict[Word, Annotated[str, Field(min_length=1, max_length=200)] | SoundBody]
LexiconId = Annotated[str, Field(pattern=f"^(?:{LEXICON_ID.pattern})$")]


class TextBody(Body):
    """A text and how it is read. Unknown fields are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    input: str = Field(min_length=1, description="the text to speak, or an SSML document")
    input_type: Literal["text", "ssml"] = "text"
    language: str = Field(
        "auto",
        max_length=35,
        description=f"what numbers and signs are read in: {KNOWN}; another one has no effect and is named",
    )
    normalize: bool | NormalizeBody = Field(True, description="false: signs and digits are read as they stand")
    apply_text_normalization: Literal["auto", "on", "off"] | None = Field(None, description="the same, as ElevenLabs calls it")
    lexicon: Annotated[list[LexiconId], Field(max_length=3)] | Annotated[Sounds, Field(max_length=100)] | None = Field(
        None, description="ids of stored lexicons, the first counts first, or word -> alias or {alias} or {pinyin}"
    )
    allow_control_tags: bool | None = Field(
        None, description="whether [laugh], [uv_break] and the like are control tags; null: the operator's choice"
    )

    @property
    def ignored(self) -> list[str]:
        """Fields without effect, unknown ones included."""
        return [*(() if not self.language or reading_of(self.language) else ("language",)), *(self.model_extra or {})]

    def marked_up(self, *, control_tags: bool, strict: bool) -> Document | None:
        """Returns a text of several passages; None for one that is spoken as it stands.

        Raises:
            InvalidSsml
        """
        return parse(self.input, control_tags=control_tags, strict=strict) if self.input_type == "ssml" else None

    @property
    def reading(self) -> str:
        """The reading of `language`: auto, zh, en or dialect."""
        return reading_of(self.language) or "auto"


class LexiconBody(Body):
    """PUT /v1/lexicons/{id}."""

    entries: Annotated[Sounds, Field(min_length=1, max_length=MAX_ENTRIES)]


@dataclass(frozen=True, slots=True)
class WrittenText:
    """The part of a SynthesisRequest that is text."""

    text: str
    passages: tuple[Passage, ...]
    control_tags: bool
    lexicon: Entries
    normalize: tuple[tuple[str, bool | str], ...]
    warnings: tuple[tuple[str, int], ...]
    marks: tuple[Mark, ...] = ()
    """of an SSML document"""
    turns: tuple[Turn, ...] = ()
    """of a dialogue"""


def read_text(
    body: TextBody,
    *,
    limits: LimitsConfig,
    strict: bool,
    voice_id: Callable[[str | None], str],
    lexicon: Callable[[str], Entries],
    substitute: str | None = None,
) -> WrittenText:
    """Returns the text part of a body in its domain form.

    Args:
        strict: refuse markup that has no effect instead of counting it.
        voice_id: id of a voice by name.
        lexicon: entries of a stored lexicon by id.
        substitute: id of the voice that speaks for one that is not there; None: it is refused.

    Raises:
        InvalidRequest, ApiError
    """
    allowed = _control_tags(body.allow_control_tags, limits)
    document = body.marked_up(control_tags=allowed, strict=strict)
    text, document = (body.input, Document((), (), ())) if document is None else (document.text, document)
    in_language = (replace(item, language=body.reading) if item.language == "auto" else item for item in document.passages)
    unknown: list[str] = []

    def known_id(name: str | None) -> str:
        try:
            return voice_id(name)
        except UnknownVoice:
            if substitute is None:
                raise
            unknown.append(UNKNOWN_VOICE)
            return substitute

    passages = tuple(_with_voice_ids(in_language, known_id, is_dialogue=bool(document.turns)))
    if len(text) > limits.max_text_chars:
        raise TextTooLong(
            f"input has {len(text)} characters; the limit is {limits.max_text_chars} (limits.max_text_chars)", param="input"
        )
    turns = tuple(
        replace(turn, voice=passage.prosody.voice or "") for turn, passage in zip(document.turns, passages, strict=False)
    )
    lexicon_entries, normalized = _entries(body, lexicon), _normalize(body)
    warnings = (*document.warnings, *Counter(unknown).items())
    return WrittenText(text, passages, allowed, lexicon_entries, normalized, warnings, document.marks, turns)


def without_markup(text: WrittenText, *, strict: bool) -> WrittenText:
    """Returns a text with the words, tags and silence of its passages, and the passages that lost more than that counted.

    Raises:
        InvalidSsml: strict, and a passage has more.
    """
    passages = tuple(map(plain, text.passages))
    lost = sum(before != after for before, after in zip(text.passages, passages, strict=True))
    if lost and strict:
        raise InvalidSsml(
            f"strict=1 refuses what this version of the model does not support: of {lost} passages their voice, prosody or "
            "pronunciation",
            param="input",
        )
    warnings = (*text.warnings, (UNSUPPORTED_MARKUP, lost)) if lost else text.warnings
    return replace(text, passages=passages, warnings=warnings)


def plain(passage: Passage) -> Passage:
    """Returns a passage with its words, tags and silence, without pronunciations and prosody."""
    return replace(passage, pronunciations=(), prosody=Prosody())


def check_ignored(ignored: Sequence[str], known: Sequence[str], *, strict: bool) -> None:
    """Checks that no field is without effect, if `strict`.

    Args:
        known: names that may be repeated to the client.

    Raises:
        ApiError
    """
    if strict and ignored:
        named = [name for name in ignored if name in known]
        raise bad_request(
            "unknown_field",
            f"{len(ignored)} fields have no effect here and strict=1 refuses them",
            param=named[0] if named else None,
        )


def entries_of(sounds: Sounds) -> Entries:
    """Returns a lexicon in its domain form."""
    return tuple(_entry(word, sound) for word, sound in sounds.items())


def _entry(word: str, sound: str | SoundBody) -> LexiconEntry:
    if isinstance(sound, str):
        return LexiconEntry(word, PronunciationKind.ALIAS, sound)
    if sound.alias is not None:
        return LexiconEntry(word, PronunciationKind.ALIAS, sound.alias)
    assert sound.pinyin is not None
    return LexiconEntry(word, PronunciationKind.PINYIN, sound.pinyin)


def _entries(body: TextBody, lexicon: Callable[[str], Entries]) -> Entries:
    match body.lexicon:
        case None:
            return ()
        case list() as ids:
            return tuple(entry for lexicon_id in ids for entry in lexicon(lexicon_id))
        case sounds:
            return entries_of(sounds)


def _normalize(body: TextBody) -> tuple[tuple[str, bool | str], ...]:
    if body.apply_text_normalization is not None and body.normalize is not True:
        raise bad_request(
            "conflicting_fields", "give either normalize or apply_text_normalization", param="apply_text_normalization"
        )
    options: NormalizeOptions
    if isinstance(body.normalize, bool):
        options = NormalizeOptions() if body.normalize and body.apply_text_normalization != "off" else PLAIN
    else:
        options = body.normalize
    defaults = asdict(NormalizeOptions())
    return tuple((name, value) for name, value in asdict(options).items() if value != defaults[name])


def _control_tags(requested: bool | None, limits: LimitsConfig) -> bool:
    if requested and limits.control_tags == "never":
        raise bad_request(
            "control_tags_not_allowed",
            "this service takes no control tags (limits.control_tags: never); leave allow_control_tags out",
            param="allow_control_tags",
        )
    return limits.control_tags == "by_default" if requested is None else requested


def _with_voice_ids(
    passages: Iterable[Passage], voice_id: Callable[[str | None], str], *, is_dialogue: bool
) -> Iterator[Passage]:
    """Yields passages with the ids of their voices; those of a dialogue all have one."""
    for number, passage in enumerate(passages, start=1):
        name = passage.prosody.voice
        if name is None and not is_dialogue:
            yield passage
            continue
        try:
            yield replace(passage, prosody=replace(passage.prosody, voice=voice_id(name)))
        except UnknownVoice as error:
            if name in CHOSEN_VOICES and not is_dialogue:
                yield replace(passage, prosody=replace(passage.prosody, voice=None))
                continue
            place, param = (f"turn {number}", "turns") if is_dialogue else ("SSML", "input")
            raise UnknownVoice(f"{place}: {error.message}", param=param) from None
