"""Show config: prints every value a file resolves to, and where it comes from.

Usage: `chattts-serve config show configs/dev.yaml`

In:    a path
Out:   one line a value: path, value, `file` or `default`, unit and meaning
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from pipeline.errors import ConfigError
from scripts.config_path import CONFIG_HELP, config_path
from serve.config.config_file import check_file


def main(arguments: list[str] | None = None) -> int:
    """Print the resolved args."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve config show", description="Print every resolved value of a configuration file."
    )
    parser.add_argument("file", type=config_path, help=CONFIG_HELP)
    try:
        checked = check_file(parser.parse_args(arguments).file)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    given = checked.document["applications"][0].get("args", {})
    rows = list(resolved(checked.app, given, ""))
    width = max(len(path) for path, *_ in rows)
    for path, value, origin, description in rows:
        print(f"{path:<{width}}  {value!s:<20} {origin:<8} {description}")
    return 0


def resolved(model: BaseModel, given: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any, str, str]]:
    """Every leaf below `model`: path, value, origin, description."""
    for name, field in type(model).model_fields.items():
        value, path = getattr(model, name), f"{at}{name}"
        if isinstance(value, BaseModel):
            yield from resolved(value, given.get(name) or {}, f"{path}.")
        elif isinstance(value, dict) and value:
            for key, entry in value.items():
                yield from resolved(entry, given[name][key] or {}, f"{path}.{key}.")
        else:
            yield path, value, "file" if name in given else "default", field.description or ""


if __name__ == "__main__":
    sys.exit(main())
