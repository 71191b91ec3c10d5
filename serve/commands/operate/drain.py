"""Drain: makes a running service refuse new requests and waits until its streams have ended. Stop it afterwards.

In:    a configuration file, the address of a Ray cluster
Out:   exit code 0 once every stream has ended, 1 if some were left after --grace or the cluster does not answer
Never: stopping anything; a drained service is not ready and answers 503 `draining` until it is stopped or redeployed
"""

import argparse
import asyncio
import sys
import time

from ray import serve

from pipeline.errors import ConfigError
from serve.commands.config_path import CONFIG_HELP, config_path
from serve.commands.operate.cluster import add_address, connected
from serve.config.config_file import check_file

POLL_S = 0.2
ANSWER_S = 10.0  # of the replicas, on top of --grace
LINGER_S = 1.0  # the proxy sends the last bytes after the replica has


def main(arguments: list[str] | None = None) -> int:
    """Closes admission on every ingress replica and waits for the requests in flight."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve drain", description="Refuse new requests, then wait until every stream has ended."
    )
    parser.add_argument("config", type=config_path, help=CONFIG_HELP)
    parser.add_argument("--grace", type=float, default=600.0, help="longest time to wait [s] (default: %(default)s)")
    add_address(parser)
    args = parser.parse_args(arguments)
    try:
        checked = check_file(args.config)
        if checked.is_one_process:
            raise ConfigError(f"{args.config}: a service in one process drains when it receives SIGTERM")
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    (application,) = checked.document["applications"]
    with connected(args.address, args.grace + ANSWER_S):
        remaining = asyncio.run(drain(application["name"], args.grace))
    if remaining:
        print(f"{remaining} streams were still running after {args.grace:g} s", file=sys.stderr)
    return 1 if remaining else 0


async def drain(application: str, grace_s: float) -> int:
    """Drains all ingress replicas; returns how many requests are in flight at the end.

    Raises:
        ValueError: the cluster does not run this application.
    """
    if application not in (here := serve.status().applications):
        raise ValueError(
            f"no application {application} runs there, but {', '.join(here) or 'none at all'}: is it another cluster?"
        )
    deadline = time.monotonic() + grace_s
    handle = serve.get_app_handle(application)
    while True:
        in_flight: list[int] = await handle.broadcast("drain").results_async()
        if not sum(in_flight):
            await asyncio.sleep(LINGER_S)
            return 0
        if time.monotonic() > deadline:
            return sum(in_flight)
        await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
