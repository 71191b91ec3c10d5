"""Configuration reference: the page docs/configuration-reference.md.

In:    scripts/operate/config_reference.py
Out:   docs/configuration-reference.md, written by `python -m scripts.generate`
Owns:  that file
Never: a text of its own
"""

from pathlib import Path

from scripts.operate.config_reference import markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration-reference.md"


def files() -> dict[Path, str]:
    """Returns path -> text of the generated page."""
    return {PAGE: markdown()}
