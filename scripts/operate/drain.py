"""Drain: lets a running service end: nothing new is taken, what is being spoken is heard to its end. Then stop it.

In:    a configuration file, the Ray cluster of this environment
Out:   exit code 0 once every stream has ended, 1 when some were left after --grace, or nobody answers
Never: stopping anything; a drained service is not ready and answers 503 `draining` until it is stopped or deployed anew
"""

import argparse
import asyncio
import sys
import time

from ray import serve

from pipeline.errors import ConfigError
from scripts.config_path import CONFIG_HELP, config_path
from scripts.operate.cluster import connected
from serve.config.config_file import check_file

POLL_S = 0.2
ANSWER_S = 10.0  # the replicas', beyond --grace
LINGER_S = 1.0  # the proxy hands the last bytes over after the replica has


def main(arguments: list[str] | None = None) -> int:
    """Close every door, wait for who is inside."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve drain", description="Take nothing new, wait until every stream has ended."
    )
    parser.add_argument("config", type=config_path, help=CONFIG_HELP)
    parser.add_argument("--grace", type=float, default=600.0, help="longest to wait [s] (%(default)s)")
    parser.add_argument("--address", default="auto", help="of the Ray cluster (%(default)s)")
    args = parser.parse_args(arguments)
    try:
        (application,) = check_file(args.config).document["applications"]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    with connected(args.address, args.grace + ANSWER_S):
        left = asyncio.run(drain(application["name"], args.grace))
    if left:
        print(f"{left} streams were still being spoken after {args.grace:g} s", file=sys.stderr)
    return 1 if left else 0


async def drain(application: str, grace_s: float) -> int:
    """Close the doors of all ingress replicas; returns how many requests are inside at the end."""
    deadline = time.monotonic() + grace_s
    handle = serve.get_app_handle(application)
    while True:
        inside: list[int] = await handle.broadcast("drain").results_async()
        if not sum(inside):
            await asyncio.sleep(LINGER_S)
            return 0
        if time.monotonic() > deadline:
            return sum(inside)
        await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
