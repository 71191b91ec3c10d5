r"""Deepgram markup: pronunciations, \{"word": "...", "pronounce": "..."\}, and pauses, \{pause:500ms\}.

Out:   a table of pipeline/text/markup/marked_text.py
"""

import json
import re

from pipeline.text.markup.marked_text import DROPPED, TAGS, Table, pause, words


def _control(mark: re.Match[str]) -> str:
    """Returns the word of a pronunciation, whose sounds the model does not know, or a pause."""
    content = mark[1].strip()
    if content.startswith("pause:"):
        return pause(content.removeprefix("pause:"))
    try:
        word = json.loads(f"{{{content}}}").get("word")
    except ValueError:
        word = None
    return DROPPED + (words(word) if isinstance(word, str) else "")


TABLE: Table = {"<": TAGS, "\\": ((re.compile(r"\\\{([^{}\\]{0,250})\\\}"), _control),)}
