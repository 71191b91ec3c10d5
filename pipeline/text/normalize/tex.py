"""TeX: reads a formula as a lecturer says it.

In:    the source of one formula, as TeX has it between dollar signs
Out:   words
Never: whether a text is a formula, which math.py decides

A formula is parsed once, from left to right, group by group. What is unknown is left out; a formula is never an error.
"""

import re
from collections.abc import Callable

from pipeline.text.normalize.latin import join_words, letters
from pipeline.text.normalize.numbers import fraction, number
from pipeline.text.normalize.options import Language
from pipeline.text.normalize.tables import row_table, word_list

NAMES = row_table("tex name")  # command: English, Chinese
NAMES |= {
    name.capitalize(): NAMES[name] for name in ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "phi", "psi", "omega")
}
SIGNS = row_table("tex sign")  # in a formula
BIG = row_table("tex big")  # operators with bounds below and above
POWERS = row_table("tex power")
ACCENTS = row_table("tex accent")  # behind what they stand over
TEXTS = frozenset(word_list("texts"))
"""commands whose argument is words"""
FONTS = frozenset(word_list("fonts"))
"""commands whose argument is read as if they were not there"""
SILENT = frozenset(word_list("silent"))
WORDS = frozenset(word_list("words"))
"""function names that are often written without a backslash"""

MAX_DEPTH = 16
DIGITS = "0123456789"
_TOKEN = re.compile(
    r"\\(?:[A-Za-z]+\*?|[^A-Za-z\s])|\d+(?:,\d{3})*(?:\.\d+)?|[A-Za-z]+|[\u4e00-\u9fff]+|[{}^_\[\]()|&'+=<>*/%~,;:!.-]|[^\s]",
    re.ASCII,
)
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_PLAIN_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_FUNCTIONS = frozenset("fghpquvyFGHOPTVELNUWR")
"""letters before a bracket that are read as functions: f of x"""


def tex_words(source: str, language: Language) -> str:
    """Returns the words of a formula; empty if there are none."""
    source = _RAISED.sub(lambda match: f"^{{{match[0].translate(_PLAIN_DIGITS)}}}", source)
    reader = _Reader(_TOKEN.findall(source), language)
    return join_words(reader.read_until(""))


class _Reader:
    """The tokens of one formula and the place in them."""

    def __init__(self, tokens: list[str], language: Language) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0
        self._is_chinese = language == "zh"
        self._language: Language = language

    def read_until(self, end: str) -> list[str]:
        """Returns the words up to a token, which is consumed too, or up to the end."""
        self._depth += 1
        spoken: list[str] = []
        while (token := self._next()) and token != end:
            if self._depth > MAX_DEPTH:
                continue
            spoken += self._term(token, spoken)
        self._depth -= 1
        return spoken

    def _pick(self, names: tuple[str, ...]) -> str:
        return names[self._is_chinese]

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._place += 1
        return token

    def _term(self, token: str, before: list[str]) -> list[str]:
        """Returns the words of one token and its arguments, with the powers and indices on it."""
        if token in "^_" or token == "":
            return self._script(token)
        if token == "-":
            return [self._minus(before)]
        spoken = self._atom(token)
        while self._peek() in ("^", "_") and self._peek():
            spoken = [*spoken, *self._script(self._next())]
        return spoken

    def _atom(self, token: str) -> list[str]:
        if token == "{":
            return self.read_until("}")
        if token.startswith("\\"):
            return self._command(token[1:].rstrip("*"))
        if token[0] in DIGITS:
            return [number(token, self._language)]
        if token[0].isascii() and token[0].isalpha():
            return self._letters(token)
        if "\u4e00" <= token[0] <= "\u9fff":
            return [token]
        if token == "!":
            return [self._pick(("factorial", "的阶乘"))]
        if token == "|":
            return self._bar()
        if token in SIGNS:
            return [self._pick(SIGNS[token])]
        return []

    def _letters(self, token: str) -> list[str]:
        if token in WORDS:
            return self._command(token)
        spoken = list(token)
        if self._peek() == "'":
            self._next()
            spoken.append(self._pick(SIGNS["'"]))
        if self._peek() == "(" and token in _FUNCTIONS and not self._is_chinese:
            self._next()
            return [*spoken, "of", *self.read_until(")")]
        return spoken

    def _minus(self, before: list[str]) -> str:
        is_sign = not before or before[-1] in _OPERATORS
        return "minus" if not self._is_chinese else "负" if is_sign else "减"

    def _bar(self) -> list[str]:
        rest = self._tokens[self._place :]
        if "|" not in rest:
            return [self._pick(("given", "给定"))]
        inside = self.read_until("|")
        return [*inside, "的绝对值"] if self._is_chinese else ["the absolute value of", *inside]

    def _argument(self) -> list[str]:
        """Returns the words of the next group or token."""
        token = self._next()
        if token and token not in "}^_":
            first, rest = (token[0], token[1:]) if len(token) > 1 and token.isdigit() else (token, "")
            if rest:  # \frac12
                self._place -= 1
                self._tokens[self._place] = rest
            return self._atom(first)
        return []

    def _raw_argument(self) -> str:
        """Returns the source of the next group, for numbers and names."""
        if self._peek() != "{":
            return self._next()
        depth, start = 0, self._place
        while token := self._next():
            depth += {"{": 1, "}": -1}.get(token, 0)
            if depth == 0:
                break
        return " ".join(self._tokens[start + 1 : self._place - 1])

    def _script(self, sign: str) -> list[str]:
        """Returns the words of a power or an index."""
        start = self._place
        raw = self._raw_argument()
        if sign == "^" and raw in POWERS:
            return [self._pick(POWERS[raw])]
        if sign == "^" and raw and set(raw) <= {"'", " "}:
            return [self._pick(("prime", "撇"))] * raw.count("'")
        self._place = start
        spoken = self._argument()
        if not spoken:
            return []
        if sign == "_":
            return spoken if self._is_chinese else ["sub", *spoken]
        if self._is_chinese:
            return ["的", *spoken, "次方"]
        return ["to the power of", *spoken]

    def _command(self, name: str) -> list[str]:
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return self._fraction()
        if name in BIG or name == "lim":
            return self._bounded(name)
        for names, read in self._readers():
            if name in names:
                return read(name)
        if name in NAMES:
            return [self._pick(NAMES[name])]
        return []

    def _readers(self) -> tuple[tuple[frozenset[str] | dict[str, tuple[str, ...]], Callable[[str], list[str]]], ...]:
        return (
            (TEXTS, self._words),
            (FONTS, lambda name: self._argument()),
            (ACCENTS, lambda name: [*self._argument(), self._pick(ACCENTS[name])]),
            (frozenset(["vec"]), lambda name: [self._pick(("vector", "向量")), *self._argument()]),
            (frozenset(["sqrt"]), lambda name: self._root()),
            (frozenset(["binom"]), lambda name: [*self._argument(), self._pick(("choose", "选")), *self._argument()]),
            (frozenset(["begin", "end"]), self._environment),
            (frozenset(["log"]), lambda name: self._log()),
            (SILENT, lambda name: []),
        )

    def _words(self, name: str) -> list[str]:
        raw = self._raw_argument()
        return [word.upper() if word.isupper() else word for word in re.findall(r"[A-Za-z]+|[\u4e00-\u9fff]+", raw)] + [
            number(digits, self._language) for digits in re.findall(r"\d+", raw)
        ]

    def _fraction(self) -> list[str]:
        start = self._place
        if self._peek().isdigit() and len(self._peek()) == 2:  # \frac12
            digits = self._next()
            return [fraction(digits[0], digits[1], self._language)]
        above, below = self._raw_argument(), self._raw_argument()
        if above.isdigit() and below.isdigit() and int(below):
            return [fraction(above, below, self._language)]
        self._place = start
        numerator, denominator = self._argument(), self._argument()
        return [*denominator, "分之", *numerator] if self._is_chinese else [*numerator, "over", *denominator]

    def _root(self) -> list[str]:
        degree = ""
        if self._peek() == "[":
            self._next()
            degree = "".join(self.read_until("]"))
        inside = self._argument()
        if self._is_chinese:
            return [f"{degree}次根号" if degree else "根号", *inside]
        named = {"": "the square root of", "three": "the cube root of"}.get(degree, f"the root of degree {degree} of")
        return [named, *inside]

    def _log(self) -> list[str]:
        if self._peek() != "_":
            return ["log"]
        self._next()
        base = self._argument()
        return ["log以", *base, "为底"] if self._is_chinese else ["log base", *base]

    def _bounded(self, name: str) -> list[str]:
        """Returns the words of a sum, an integral or a limit and its bounds."""
        below: list[str] = []
        above: list[str] = []
        while (self._peek() in ("^", "_") and self._peek()) or self._peek() == "\\limits":
            sign = self._next()
            if sign == "_":
                below = self._argument()
            elif sign == "^":
                above = self._argument()
        if name == "lim":
            if self._is_chinese:
                return [*below, "时的极限"] if below else ["极限"]
            return ["the limit as", *below, "of"] if below else ["the limit of"]
        called = self._pick(BIG[name])
        if self._is_chinese:
            return [called, *(["从", *below] if below else []), *(["到", *above] if above else [])]
        joined = " over" if below and not above else " from"
        return [called + (joined if below else ""), *below, *(["to", *above] if above else []), "of"]

    def _environment(self, name: str) -> list[str]:
        self._raw_argument()
        return []


_OPERATORS = frozenset(word for names in SIGNS.values() for word in names) | frozenset(
    word for name in ("times", "cdot", "leq", "geq", "approx", "to", "in", "pm") for word in NAMES[name]
)


def spelled(word: str) -> str:
    """Returns the letters of a product such as mc."""
    return letters(word) if word.isupper() else " ".join(word)
