"""Stop service: ends a service that `chattts-serve start` runs on this machine, and nothing else.

In:    its port, where several run
Out:   exit code 0 once it has ended
Never: a process that is none of the run's own
"""

import argparse
import os
import signal
import sys
import time

from pipeline.paths import cache_home
from serve.commands.launch.runs import NONE, is_running, services

POLL_S = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Signals the process that started the service, and waits for its end."""
    parser = argparse.ArgumentParser(prog="chattts-serve stop", description="Stop a service of this machine.")
    parser.add_argument("port", nargs="?", type=int, help="where several run: that of the one to stop")
    parser.add_argument("--now", action="store_true", help="cut running streams in place of letting them end")
    args = parser.parse_args(arguments)
    running = [service for service in services(cache_home()) if args.port in (None, service.port)]
    if len(running) != 1:
        several = f"several run, name the port of one: {', '.join(service.url for service in running)}"
        print(several if running else NONE, file=sys.stderr)
        return 1
    (service,) = running
    print(f"stopping {service.url} (process {service.pid}){'' if args.now else '; running streams may end first'}", flush=True)
    os.kill(service.pid, signal.SIGINT if args.now else signal.SIGTERM)
    while is_running(service.folder):
        time.sleep(POLL_S)
    return 0
