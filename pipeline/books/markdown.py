"""Markdown: a text in Markdown, or a page of HTML, as a book.

In:    text; bytes of HTML
Out:   Book: the largest headings begin its chapters
Never: Markdown by patterns: markdown-it writes HTML of it, which is read as any page is

One heading alone at the top level is the title of the book, and those of the next level begin its chapters.
"""

import json
import re
import tomllib
from functools import lru_cache
from typing import Any

import yaml
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.front_matter import front_matter_plugin
from mdit_py_plugins.subscript import sub_plugin
from mdit_py_plugins.superscript import superscript_plugin
from mdit_py_plugins.tasklists import tasklists_plugin

from pipeline.books.book import Book, Chapter, read_plain
from pipeline.books.page import Block, blocks_of, elements_of, text_of, tree_of

_DEEPEST = 80  # elements in elements; what has more is read as a plain text
_ATTRIBUTES = re.compile(r"\s*\{[#.:][^{}\n]{0,200}\}$")
_LONGEST_MATTER = 20_000  # characters


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _DEEPEST}).enable(["table", "strikethrough"])
    parser.use(front_matter_plugin).use(footnote_plugin).use(tasklists_plugin).use(sub_plugin).use(superscript_plugin)
    return parser.use(dollarmath_plugin, allow_space=False, allow_digits=False, double_inline=True)


def read_markdown(text: str) -> Book:
    """Returns the book of a Markdown text; its front matter names title, author and language."""
    text = _toml_matter(text.replace("\r\n", "\n").removeprefix("\ufeff"))
    before, end, behind = text.rpartition("-->")
    text = re.sub(r"<!--.*?-->", "", before + end, flags=re.DOTALL) + behind
    try:
        tokens = _parser().parse(text, environment := dict[str, Any]())
        if any(token.level >= _DEEPEST - 2 for token in tokens):
            return read_plain(text)
        page = _parser().renderer.render(tokens, _parser().options, environment)
    except RecursionError:
        return read_plain(text)
    matter = next((token.content for token in tokens[:1] if token.type == "front_matter"), "")
    return _book(blocks_of(page), _front_matter(matter))


def read_html(page: bytes) -> Book:
    """Returns the book of a page."""
    titles = elements_of(tree_of(page), "title")
    return _book(blocks_of(page), {"title": text_of(titles[0])} if titles else {})


def _toml_matter(text: str) -> str:
    """Returns a text whose front matter is in YAML, of which JSON is a part."""
    matter, end, rest = text.removeprefix("+++\n").partition("\n+++\n")
    if not end or not text.startswith("+++\n") or len(matter) > _LONGEST_MATTER:
        return text
    try:
        return f"---\n{json.dumps(tomllib.loads(matter), default=str)}\n---\n{rest}"
    except tomllib.TOMLDecodeError:
        return text


def _front_matter(written: str) -> dict[str, str]:
    try:
        fields = yaml.safe_load(written) if len(written) <= _LONGEST_MATTER else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    return {name: ", ".join(map(str, value)) if isinstance(value, list) else str(value) for name, value in fields.items()}


def _book(blocks: list[Block], fields: dict[str, str]) -> Book:
    texts = [(block.level, _ATTRIBUTES.sub("", block.text) if block.level else block.text) for block in blocks if block.text]
    levels = [level for level, _ in texts if level]
    top = min(levels, default=0)
    title = ""
    if levels.count(top) == 1 and len(set(levels)) > 1 and texts[0][0] == top:
        title = texts.pop(0)[1]
        top = min(level for level, _ in texts if level)
    chapters: list[tuple[str, list[str]]] = [(title, [])]
    for level, text in texts:
        if level and level == top:
            chapters.append((text, []))
        else:
            chapters[-1][1].append(text)
    filled_chapters = (Chapter(name, tuple(paragraphs)) for name, paragraphs in chapters if name or paragraphs)
    language = fields.get("lang") or fields.get("language") or ""
    return Book(tuple(filled_chapters), fields.get("title") or title, fields.get("author") or "", language)
