"""ElevenLabs markup: what its texts mark, by model.

Out:   tables of pipeline/text/markup/marked_text.py
"""

import re

from pipeline.text.markup.marked_text import DROPPED, LAUGH, TAGS, Table, pause

PAUSES = {"pause": "0.5", "pauses": "0.5", "short pause": "0.3", "long pause": "1.5"}
"""[s]"""
WITH_AUDIO_TAGS = ("eleven_v3", "eleven_v4", "eleven_ttv_v3")
"""beginnings of the ids of models whose texts have tags such as [laughs]"""


def _tag(mark: re.Match[str]) -> str:
    name = " ".join(mark[1].lower().split())
    if name in PAUSES:
        return pause(PAUSES[name])
    return LAUGH if any(stem in name for stem in ("laugh", "giggl", "chuckl", "snicker")) else DROPPED


PLAIN: Table = {"<": TAGS}
EXPRESSIVE: Table = {"<": TAGS, "[": ((re.compile(r"\[([A-Za-z][A-Za-z' ,-]{1,60})\](?!\()"), _tag),)}


def table_of(model: str | None) -> Table:
    """Returns the table of a model."""
    return EXPRESSIVE if (model or "").startswith(WITH_AUDIO_TAGS) else PLAIN
