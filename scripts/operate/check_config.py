"""Check config: says what is wrong with configuration files. `chattts-serve config check configs/dev.yaml`

In:    paths
Out:   exit code 0 when all of them are right, else 1 and every mistake on stderr
"""

import argparse
import sys

from pipeline.errors import ConfigError
from scripts.config_path import CONFIG_HELP, config_path
from serve.config.config_file import check_file


def main(arguments: list[str] | None = None) -> int:
    """Check every file."""
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
            print(f"{path}: right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
