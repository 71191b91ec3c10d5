"""Voice names: the forms in which a request may name a voice.

    voice-2  alloy  anna         an id, an alias, or a title
    anna@2                       that version, which never changes
    seed:2222                    the speaker ChatTTS draws for a seed
    blend:anna(0.7)+seed:5(0.3)  a mixture of embeddings
    anna+bob  anna(2)+bob(1)     the same, as Kokoro's clients write it
    emb:<speaker string>         an embedding itself, where the operator allows it

In:    str
Out:   its parts
Never: lookups
"""

import hashlib
import re
from collections.abc import Iterable

from pipeline.errors import InvalidRequest

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
RESERVED = frozenset({"random", "blend"})  # routes beside /v1/audio/voices/{id}
BLEND = "blend:"
INLINE = "emb:"
MAX_BLENDED = 8
MAX_NAME_CHARS = 4096  # an inline embedding of the widest checkpoint takes about a thousand

_VERSIONED = re.compile(rf"({ID.pattern})@([1-9][0-9]{{0,8}})")
_PART = re.compile(r"([A-Za-z0-9._@:-]{1,80})\(([0-9]{1,3}(?:\.[0-9]{1,6})?)\)")


def is_id(text: str) -> bool:
    """True if `text` may be the id of a new voice. `.` and `..` are rejected: they are path segments in a URL."""
    return bool(ID.fullmatch(text)) and text.strip(".") != "" and text not in RESERVED


def split_version(name: str) -> tuple[str, int] | None:
    """Returns anna@2 as ("anna", 2); None for a name without a version."""
    match = _VERSIONED.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def versioned(voice_id: str, version: int) -> str:
    """Returns id@version, the permanent name of a version."""
    return f"{voice_id}@{version}"


def split_blend(name: str) -> list[tuple[str, float]]:
    """Returns the voices of blend:a(0.7)+b(0.3) and their weights.

    Raises:
        InvalidRequest: the name has another form.
    """
    parts = name.removeprefix(BLEND).split("+")
    matches = [_PART.fullmatch(part) for part in parts[: MAX_BLENDED + 1]]
    weights = [(part[1], float(part[2])) for part in matches if part]
    if len(parts) > MAX_BLENDED or len(weights) < len(parts) or not all(weight > 0 for _, weight in weights):
        raise InvalidRequest(
            f"a blend is written blend:a(0.7)+b(0.3): 1 to {MAX_BLENDED} voices, each with a weight above 0 and below 1000",
            param="voice",
        )
    return weights


def is_mixture(name: str) -> bool:
    """True for a mixture as Kokoro's clients write it, which no id can be: anna+bob."""
    return "+" in name and not name.startswith((BLEND, INLINE))


def mixture_as_blend(name: str) -> str:
    """Returns anna+bob(2) as blend:anna(1)+bob(2)."""
    return BLEND + "+".join(part if part.endswith(")") else f"{part}(1)" for part in name.split("+"))


def join_blend(parts: Iterable[tuple[str, float]]) -> str:
    """Returns the name of a mixture."""
    return BLEND + "+".join(f"{name}({weight:.6g})" for name, weight in parts)


def display_name(name: str) -> str:
    """Returns the name for headers and logs: an inline embedding is replaced by its digest."""
    if not name.startswith(INLINE):
        return name
    return f"{INLINE}{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
