"""Run center: the center of a fleet of boxes. `chattts-serve center fleet.yaml`

In:    the table of serve/edge/fleet.py
Out:   the center, until a signal ends it; with --new-key, a pair of keys
Never: Ray
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from pipeline.durable_file import write_durably
from pipeline.errors import ConfigError
from serve.edge.center import Center


def main(arguments: list[str] | None = None) -> int:
    """Runs the center, or writes keys; returns 1 if the table is wrong."""
    parser = argparse.ArgumentParser(prog="chattts-serve center", description="Run the center of a fleet of boxes.")
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("fleet", type=Path, nargs="?", help="the table: docs/edge-fleet.md")
    choice.add_argument(
        "--new-key", type=Path, metavar="FILE", help="write a private key to FILE and the public one to FILE.pub"
    )
    args = parser.parse_args(arguments)
    if args.new_key is not None:
        return write_keys(args.new_key)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s %(message)s")
    try:
        center = Center(args.fleet)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{center.fleet.url}: {', '.join(center.fleet.variants)}", flush=True)
    asyncio.run(center.run())
    return 0


def write_keys(path: Path) -> int:
    """Writes a new pair of keys; returns 1 where there is a file already."""
    if path.exists():
        print(f"{path} is there: boxes trust it, and a new key needs another name", file=sys.stderr)
        return 1
    key = Ed25519PrivateKey.generate()
    write_durably(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    public = path.with_name(f"{path.name}.pub")
    write_durably(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), mode=0o644)
    print(f"{path}: stays at the center; {public}: edge.key of every box")
    return 0


if __name__ == "__main__":
    sys.exit(main())
