"""Ignored fields: what another protocol's client sets and this service has not, named so that the reply can say so.

In:    fields without effect
Out:   fields under names that no field of SpeechBody has; the names that a reply says
Owns:  how many names a reply says, and which
Never: a field that is ignored in silence; a reply that grows with them
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from serve.speech.schemas.speech import SpeechBody

HEADER_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_NAMED_FIELDS = 20


def ignored_fields(extra: Mapping[str, Any], place: str = "body") -> dict[str, Any]:
    """Returns the fields that were set.

    Args:
        place: where they stand; it goes before names that SpeechBody has with another meaning.
    """
    named = (name for name, value in extra.items() if value is not None)
    return {f"{place}.{name}" if name in SpeechBody.model_fields else name: True for name in named}


def named_fields(names: Collection[str]) -> list[str]:
    """Returns what a reply says: MOST_NAMED_FIELDS names that are valid in a header, and the number of the others."""
    named = [name for name in names if HEADER_TOKEN.fullmatch(name)][:MOST_NAMED_FIELDS]
    hidden = len(names) - len(named)
    return [*named, f"+{hidden}"] if hidden else named


def ignored_header(names: Collection[str]) -> str:
    """Returns the names as a header value."""
    return ", ".join(named_fields(names))
