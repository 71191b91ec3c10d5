"""SSML reader: walks a document once and writes its text into passages.

In:    the tree of a document, one handler per element
Out:   passages, marks, warnings
Owns:  the passage that is being written
Never: the meaning of any element, durations, rates
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from pipeline.errors import InvalidSsml
from pipeline.text.language_tags import reading_of
from pipeline.text.markup.control_tags import neutralise
from pipeline.text.markup.elements import INLINE, SOUNDS, Sound
from pipeline.types import Mark, Passage, Pronunciation, PronunciationKind, Prosody

MAX_DEPTH = 10
MAX_ELEMENTS = 1000
MAX_TURNS = 50
"""voice and break elements together"""

LANGUAGE_ATTRIBUTE = "xml:lang"

_SPACES = re.compile(r"\s+")
_BLOCKS = frozenset(["td", "dialog", "turn", "par", "seq", "media"])
"""unknown elements that are lines of their own, with the blocks of pages"""
_INLINE = INLINE | {"w", "token", "lookup", "effect", "style", "foreign", "math", "sup", "auto-breaths", "bookmark"}
"""unknown elements that may be a part of a word"""
_UNSPOKEN = frozenset(["metadata", "meta", "lexicon", "desc"])


@dataclass(frozen=True, slots=True)
class Scope:
    """Prosody and language at one position of the document."""

    prosody: Prosody = Prosody()  # noqa: RUF009  # frozen
    language: str = "auto"
    """auto, zh, en or dialect"""
    depth: int = 0


class SsmlReader:
    """Walks one document. The handlers of elements call its methods; `passages`, `marks` and `warnings` are the result."""

    def __init__(self, elements: Mapping[str, "Handler"], *, control_tags: bool) -> None:
        """
        Args:
            elements: the handler of each element by its name without a namespace.
            control_tags: whether [laugh] and the like in the text are control tags.
        """
        self.warnings: Counter[str] = Counter()
        self.passages: list[Passage] = []
        self.marks: list[Mark] = []
        self.tailing_ms = 0
        """silence after the whole document"""
        self._elements = elements
        self._control_tags = control_tags
        self._text = ""
        self._is_apart = False
        self._pronunciations: list[Pronunciation] = []
        self._silence_ms = 0
        self._prosody = Prosody()
        self._language = "auto"
        self._length = 0  # characters in the passages that are finished
        self._elements_read = 0
        self._turns = 0

    def read(self, root: Element) -> None:
        """Reads the whole document.

        Raises:
            InvalidSsml: outside the limits, or an element with invalid attributes.
        """
        self._read_element(root, Scope())
        self._close(Scope())
        self._silence_ms += self.tailing_ms
        if self._silence_ms:
            self.passages.append(Passage("", silence_ms=self._silence_ms))

    # -- for handlers ---------------------------------------------------------------------------------------------------

    def read_inside(self, element: Element, scope: Scope) -> None:
        """Reads the text and the children of an element."""
        self._say(element.text, scope)
        for child in element:
            self._read_element(child, scope)
            self._say(child.tail, scope)

    def say(self, text: str, scope: Scope) -> None:
        """Appends text as it is, in a passage of this scope's prosody and language."""
        if (scope.prosody, scope.language) != (self._prosody, self._language):
            self._close(scope)
        if self._is_apart and self._text and not self._text[-1].isspace():
            self._text += " "
        self._is_apart = False
        self._text += text

    def say_pronounced(self, element: Element, scope: Scope, kind: PronunciationKind, value: str) -> None:
        """Appends the element's text, spoken as `value` says. Of elements inside only the text is kept."""
        nested = list(element.iter())[1:]
        if nested:
            self.warnings["nested_element"] += len(nested)
        text = _SPACES.sub(" ", neutralise("".join(element.itertext()), allowed=False)).strip()
        if not text:
            return
        self.say("", scope)
        self._pronunciations.append(Pronunciation(len(self._text), len(self._text) + len(text), kind, value))
        self._text += text

    def pause(self, duration_ms: int) -> None:
        """Inserts exact silence [ms]."""
        if duration_ms:
            self._close(Scope(self._prosody, self._language))
            self._silence_ms += duration_ms

    def end_line(self) -> None:
        """Ends the line: the next text is another sentence."""
        if self._text.strip():
            self._text = self._text.rstrip() + "\n"

    @property
    def is_at_start(self) -> bool:
        """True if no text has been read yet."""
        return not self.passages and not self._text.strip()

    @property
    def is_in_word(self) -> bool:
        """True if the text so far ends in a letter or a digit."""
        return self._text[-1:].isalnum()

    def mark(self, name: str) -> None:
        """Sets a mark here."""
        self.marks.append(Mark(name, self._length + len(self._text), 0 if self._text else self._silence_ms))

    # -- the walk ----------------------------------------------------------------------------------------------------

    def _read_element(self, element: Element, outer: Scope) -> None:
        name, depth = element_name(element), outer.depth + 1
        self._check_limits(name, depth)
        scope = Scope(outer.prosody, self._language_of(element, outer.language), depth)
        if name in _UNSPOKEN:
            self.warnings["unspoken_element"] += 1
        elif name in self._elements and (depth == 1 or name != "speak"):
            self._elements[name](self, element, scope)
        else:
            self.warnings["unknown_element"] += 1
            self._end_word(element, name)
            self.read_inside(element, scope)
            self._end_word(element, name)

    def _end_word(self, element: Element, name: str) -> None:
        """Keeps the words of an unknown element apart from those beside it, unless it may stand inside a word."""
        if name in _BLOCKS or SOUNDS.get(name) is Sound.BLOCK:
            self.end_line()
        elif name not in _INLINE and ":" not in element.tag:
            self._is_apart = True

    def _check_limits(self, name: str, depth: int) -> None:
        self._elements_read += 1
        if depth > MAX_DEPTH:
            raise invalid(f"elements are nested more than {MAX_DEPTH} deep")
        if self._elements_read > MAX_ELEMENTS:
            raise invalid(f"more than {MAX_ELEMENTS} elements")
        if name in ("voice", "break"):
            self._turns += 1
            if self._turns > MAX_TURNS:
                raise invalid(f"more than {MAX_TURNS} voice and break elements")

    def _say(self, text: str | None, scope: Scope) -> None:
        """Appends text of the document, with white space reduced to single spaces."""
        if not text:
            return
        if not text.isspace():
            self.say("", scope)
        if not self._control_tags:
            text = neutralise(text, allowed=False)
        text = _SPACES.sub(" ", text)
        self._text += text.lstrip() if self._text.endswith((" ", "\n")) else text

    def _close(self, scope: Scope) -> None:
        """Ends the passage; the next one has the given scope."""
        if self._text.strip():
            self.passages.append(
                Passage(
                    text=self._text,
                    pronunciations=tuple(self._pronunciations),
                    control_tags=True,
                    language=self._language,
                    prosody=self._prosody,
                    silence_ms=self._silence_ms,
                )
            )
            self._length += len(self._text)
            self._silence_ms = 0
        self._text = ""
        self._pronunciations = []
        self._prosody, self._language = scope.prosody, scope.language

    def _language_of(self, element: Element, language: str) -> str:
        requested = element.get(LANGUAGE_ATTRIBUTE)
        if requested is None:
            return language
        reading = reading_of(requested)
        if reading is None:
            self.warnings["unsupported_language"] += 1
        return reading or "auto"


Handler = Callable[[SsmlReader, Element, Scope], None]
"""reads one element; arguments: the reader, the element, its scope"""


def element_name(element: Element) -> str:
    """Returns the name without its prefix."""
    return element.tag.rpartition(":")[2]


def attributes(element: Element) -> set[str]:
    """Returns the names of an element's attributes, but those of any element."""
    return {name for name in element.keys() if not name.startswith("xml")}  # noqa: SIM118


def invalid(message: str) -> InvalidSsml:
    """Returns the error that names SSML and the field at fault."""
    return InvalidSsml(f"SSML: {message}", param="input")
