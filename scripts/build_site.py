"""Build site: collects the pages of the site: README.md and all it links to, the API's document, samples of the voice.

In:    the pages and pictures of this checkout; the demo voice; `python -m scripts.build_site FOLDER`, which `make site` runs
Out:   FOLDER/pages, laid out as the checkout is, and FOLDER/mkdocs.yml with the navigation
Never: a second list of pages: the navigation is the README's table
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

import yaml

from serve.commands import say
from serve.config.app_config import PROJECT
from serve.protocols.api import create_api

FIRST = "README.md"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
CELLS = re.compile(r"^\| (.*?) \|", re.MULTILINE)
ROW = re.compile(r"\[([^\]]+)\]\(((?:docs/)?[\w/.-]+\.md)\)")
OPENAPI = '# OpenAPI\n\n`/openapi.json` of this release.\n\n<swagger-ui src="openapi.json"/>\n'
SAMPLES = (
    ("English", "default", "The train to Boston leaves at half past nine. Would you like a seat by the window?"),
    ("English, another voice", "nova", "The train to Boston leaves at half past nine. Would you like a seat by the window?"),
    ("Mandarin", "default", "今天天气很好，我们下午去公园走走吧。"),
)


def main() -> int:
    """Writes the folder anew."""
    parser = argparse.ArgumentParser(description="Collect the pages of the site.")
    parser.add_argument("folder", type=Path, help="is written anew")
    folder = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    for path in linked(PROJECT / FIRST):
        target = pages / path.relative_to(PROJECT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (pages / "openapi.json").write_text(json.dumps(create_api(lambda: None).openapi()))  # type: ignore[arg-type, return-value]
    (pages / "openapi.md").write_text(OPENAPI)
    (pages / "listen.md").write_text("\n".join(listen_page(pages)))
    table = (PROJECT / FIRST).read_text().partition("## Documentation")[2]
    nav: list[dict[str, str]] = [{"Start": FIRST}, {"Listen": "listen.md"}]
    nav += [{title: page} for title, page in ROW.findall("\n".join(CELLS.findall(table)))] + [{"OpenAPI": "openapi.md"}]
    site = {"INHERIT": str(PROJECT / "mkdocs.yml"), "docs_dir": "pages", "site_dir": "html", "nav": nav}
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(site, allow_unicode=True, sort_keys=False))
    return 0


def linked(first: Path) -> set[Path]:
    """Returns a page and the files of the project that can be reached from it by links."""
    reached, waiting = set[Path](), [first]
    while waiting:
        path = waiting.pop()
        if path not in reached and path.is_file() and path.is_relative_to(PROJECT):
            reached.add(path)
            if path.suffix == ".md":
                links = LINK.findall(path.read_text(encoding="utf-8"))
                waiting += [(path.parent / unquote(link)).resolve() for link in links if "://" not in link]
    return reached


def listen_page(pages: Path) -> list[str]:
    """Speaks the samples; returns the lines of the page that plays them."""
    lines = [
        "# Listen",
        "",
        "The demo voice, as it ships. The same text, voice and seed give these bytes on your machine too.",
        "",
    ]
    for number, (title, voice, text) in enumerate(SAMPLES):
        name = f"sample-{number}.mp3"
        if say.main([text, "--voice", voice, "--seed", "1", "-o", str(pages / name)]):
            raise SystemExit(f"the sample {title} cannot be spoken")
        lines += [f"**{title}.** {text}", "", f'<audio controls preload="none" src="../{name}"></audio>', ""]
    return lines


if __name__ == "__main__":
    sys.exit(main())
