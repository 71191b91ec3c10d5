"""Ignored fields: what another protocol's client sets and this service has not, named so that the reply can say so.

In:    fields without effect
Out:   fields under names that no field of SpeechBody has
Owns:  nothing
Never: a field that is ignored in silence
"""

from collections.abc import Mapping
from typing import Any

from serve.speech.schemas.speech import SpeechBody


def ignored_fields(extra: Mapping[str, Any], place: str = "body") -> dict[str, Any]:
    """Returns the fields that were set.

    Args:
        place: where they stand; it goes before names that SpeechBody has with another meaning.
    """
    named = (name for name, value in extra.items() if value is not None)
    return {f"{place}.{name}" if name in SpeechBody.model_fields else name: True for name in named}
