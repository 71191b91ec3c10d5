"""TeX tables: the spoken names of TeX's commands, in both languages.

Out:   constants
Never: patterns, parsing
"""

from pipeline.text.normalize.tables import row_table

NAMES = row_table("tex name")  # command: English, Chinese
NAMES |= {
    name.capitalize(): NAMES[name] for name in ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "phi", "psi", "omega")
}
SIGNS = row_table("tex sign")  # in a formula
BIG = row_table("tex big")  # operators with bounds below and above
ACCENTS = row_table("tex accent")  # behind what they stand over
TEXTS = frozenset(
    ["text", "textbf", "textit", "textrm", "mathrm", "mathsf", "mathtt", "mbox", "operatorname", "textsf", "texttt", "emph"]
)
"""commands whose argument is words"""
FONTS = frozenset(
    [
        "mathbf",
        "mathbb",
        "mathcal",
        "mathfrak",
        "boldsymbol",
        "bm",
        "mathit",
        "boxed",
        "underline",
        "tag",
        "underbrace",
        "overbrace",
    ]
)
"""commands whose argument is read as if they were not there"""
SILENT = frozenset(
    [
        *("left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "quad", "qquad", "displaystyle"),
        *("textstyle", "limits", "nolimits", "nonumber", "label", "hline", "toprule", "midrule", "bottomrule", "centering"),
    ]
)
WORDS = frozenset(["sin", "cos", "tan", "log", "ln", "lg", "exp", "max", "min", "mod", "gcd", "arg", "det", "dim", "lim"])
"""function names that are often written without a backslash"""
