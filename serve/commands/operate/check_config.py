"""Check config: reports every mistake in configuration files. `chattts-serve config check configs/dev.yaml`

In:    paths
Out:   exit code 0 if all of them are valid, else 1 and every mistake on stderr
Never: starting anything
"""

import argparse
import sys

from pipeline.errors import ConfigError
from serve.commands.config_path import CONFIG_HELP, config_path
from serve.config.config_file import check_file


def main(arguments: list[str] | None = None) -> int:
    """Checks every file; exit code 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve config check", description="Check configuration files, Serve's own keys included."
    )
    parser.add_argument("files", nargs="+", type=config_path, help=CONFIG_HELP)
    failures = 0
    for path in parser.parse_args(arguments).files:
        try:
            check_file(path)
        except ConfigError as error:
            print(error, file=sys.stderr)
            failures += 1
        else:
            print(f"{path}: valid")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
