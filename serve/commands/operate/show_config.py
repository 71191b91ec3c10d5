"""Show config: prints every value of a configuration file and its origin, or the reference of all keys.

Usage: `chattts-serve config show configs/dev.yaml`, `chattts-serve config show --markdown`

In:    a path
Out:   one line per value: path, value, `file` or `default`, meaning and unit; with --markdown one table row per key
Never: starting anything
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from pipeline.errors import ConfigError
from pipeline.store.redis_url import SCHEMES, url_without_password
from serve.commands.config_path import CONFIG_HELP, config_path
from serve.commands.operate.config_reference import markdown
from serve.config.config_file import check_file


def main(arguments: list[str] | None = None) -> int:
    """Prints the values of a file, or the reference; returns 1 if the file is wrong."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve config show", description="Print every value of a configuration file, its origin, unit and meaning."
    )
    parser.add_argument("file", type=config_path, nargs="?", help=CONFIG_HELP)
    parser.add_argument("--markdown", action="store_true", help="print the reference of every key instead")
    parsed = parser.parse_args(arguments)
    if parsed.markdown:
        print(markdown(), end="")
        return 0
    if parsed.file is None:
        parser.error("name a configuration file, or use --markdown")
    try:
        checked = check_file(parsed.file)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    file_values = checked.document["applications"][0].get("args", {})
    rows = list(resolved(checked.app, file_values, ""))
    width = max(len(path) for path, *_ in rows)
    for path, value, origin, description in rows:
        print(f"{path:<{width}}  {value!s:<20} {origin:<8} {description}")
    return 0


def resolved(model: BaseModel, file_values: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any, str, str]]:
    """Yields every value below `model`: path, value, origin, description."""
    for name, field in type(model).model_fields.items():
        value, path = getattr(model, name), f"{at}{name}"
        if isinstance(value, BaseModel):
            yield from resolved(value, file_values.get(name) or {}, f"{path}.")
        elif isinstance(value, dict) and isinstance(next(iter(value.values()), None), BaseModel):
            for key, entry in value.items():
                yield from resolved(entry, file_values[name][key] or {}, f"{path}.{key}.")
        else:
            yield path, _without_password(value), "file" if name in file_values else "default", field.description or ""


def _without_password(value: Any) -> Any:
    """Returns a Redis URL as its place alone, and everything else as it is."""
    is_redis = isinstance(value, str) and value.partition("://")[0] in SCHEMES
    return url_without_password(value) if is_redis else value


if __name__ == "__main__":
    sys.exit(main())
