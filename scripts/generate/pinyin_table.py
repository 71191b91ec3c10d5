"""Pinyin table: writes the table of pipeline/text/pinyin.py, one common character for every Mandarin syllable.

In:    readings of the pypinyin package (MIT), the order of GB 2312, the homophones ChatTTS replaces rare characters by
Out:   pipeline/text/pinyin.txt, written by `python -m scripts.generate`

A character is the better the surer its reading is: of GB 2312's first level, with one reading, one that ChatTTS uses itself.
"""

import importlib.util
import json
from collections import Counter, defaultdict
from pathlib import Path

from pypinyin.constants import PINYIN_DICT
from pypinyin.contrib.tone_convert import to_tone3

from pipeline.text.pinyin import SYLLABLE, TABLE

COMMON_ROWS = range(0xB0, 0xD8)  # of GB 2312: the 3,755 characters of its first level


def table() -> dict[str, str]:
    """Returns one character per syllable."""
    spec = importlib.util.find_spec("ChatTTS")
    assert spec is not None
    assert spec.origin is not None
    homophones = Counter(json.loads((Path(spec.origin).parent / "res/homophones_map.json").read_text()).values())
    candidates: dict[str, list[tuple[tuple[int, ...], str]]] = defaultdict(list)
    for number, written in PINYIN_DICT.items():
        character = chr(number)
        readings = list(dict.fromkeys(written.split(",")))
        try:
            row = character.encode("gb2312")[0]
        except UnicodeEncodeError:
            continue
        for place, reading in enumerate(readings):
            syllable = to_tone3(reading, neutral_tone_with_five=True, v_to_u=False)
            if SYLLABLE.fullmatch(syllable):
                rank = (place > 0, row not in COMMON_ROWS, len(readings) > 1, -homophones[character], number)
                candidates[syllable].append((rank, character))
    return {syllable: min(ranked)[1] for syllable, ranked in sorted(candidates.items())}


def files() -> dict[Path, str]:
    """Returns path -> text of the generated table."""
    return {TABLE: "".join(f"{syllable} {character}\n" for syllable, character in table().items())}
