"""TeX tables: the spoken names of TeX's commands, in both languages.

Out:   constants
Never: patterns, parsing
"""

from pipeline.text.normalize.tables import row_table, word_list

NAMES = row_table("tex name")  # command: English, Chinese
NAMES |= {
    name.capitalize(): NAMES[name] for name in ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "phi", "psi", "omega")
}
SIGNS = row_table("tex sign")  # in a formula
BIG = row_table("tex big")  # operators with bounds below and above
ACCENTS = row_table("tex accent")  # behind what they stand over
TEXTS = frozenset(word_list("texts"))
"""commands whose argument is words"""
FONTS = frozenset(word_list("fonts"))
"""commands whose argument is read as if they were not there"""
SILENT = frozenset(word_list("silent"))
WORDS = frozenset(word_list("words"))
"""function names that are often written without a backslash"""
