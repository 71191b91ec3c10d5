"""Tokens: what the demo voice reads: phones of English, parts of Mandarin syllables, stops, events, paces.

In:    nothing
Out:   the vocabulary, its numbers
Owns:  the order of the rows
Never: audio
"""

import torch

from scripts.train_demo.network import Tables
from scripts.train_demo.phones import STOPS, SYMBOLS
from scripts.train_demo.syllables import parts, parts_of, syllables

PREFIX = ("[Stts]", "[spk_emb]", "[speed_5]")
SUFFIX = "[Ptts]"
SPEEDS = {"[speed_2]": 0.75, "[speed_5]": 1.0, "[speed_8]": 1.3}  # pace
BREATH, LAUGH = "[uv_break]", "[laugh]"
EVENTS = (BREATH, LAUGH)
ENGLISH = (*PREFIX, SUFFIX, *STOPS, *SYMBOLS.values(), *(f"##{symbol}" for symbol in SYMBOLS.values()))
VOCABULARY = (*ENGLISH, *(speed for speed in SPEEDS if speed not in PREFIX), *EVENTS, *parts())
"""rows that are learned; a syllable's is the sum of its parts'"""
TOKEN_IDS = {token: index for index, token in enumerate((*VOCABULARY, *syllables()))}
TABLES = Tables(
    vocabulary=len(VOCABULARY),
    syllable_parts=torch.tensor([[TOKEN_IDS[part] for part in parts_of(syllable)] for syllable in syllables()]),
    speaker_position=PREFIX.index("[spk_emb]"),
)
