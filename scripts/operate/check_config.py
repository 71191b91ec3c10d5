"""Check config: says what is wrong with configuration files. `python -m scripts.operate.check_config configs/dev.yaml`

In:    paths
Out:   exit code 0 when all of them are right, else 1 and every mistake on stderr
"""

import argparse
import sys
from pathlib import Path

from pipeline.errors import ConfigError
from serve.config.config_file import check_file


def main() -> int:
    """Check every file."""
    parser = argparse.ArgumentParser(description="Check configuration files, Serve's own keys included.")
    parser.add_argument("files", nargs="+", type=Path)
    failures = 0
    for path in parser.parse_args().files:
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
