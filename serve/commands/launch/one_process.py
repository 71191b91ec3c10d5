"""One process: runs a configuration with `runtime: process`. `chattts-serve start` becomes it.

In:    a configuration file that was checked; where to log
Out:   the service, until a signal ends it; the exit code
Never: Ray
"""

import logging
import sys
from pathlib import Path

import uvloop

from pipeline.errors import CheckpointError, ConfigError, SynthesisError
from pipeline.native.memory import return_large_blocks
from pipeline.paths import cache_home
from serve.commands.launch import open_files
from serve.commands.launch.announce import address_here, announcement
from serve.commands.launch.run_log import RunLog
from serve.commands.launch.runs import Run
from serve.config.config_file import ConfigFile, check_file
from serve.local.local_service import LIMITS, LocalService

INTERRUPTED = 130
LOG_FORMAT = "%(levelname)s %(asctime)s %(name)s: %(message)s"


def main() -> int:
    """Runs the service."""
    return_large_blocks()
    try:
        log = RunLog(sys.argv[2])
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, handlers=[log.handler])
        file = check_file(Path(sys.argv[1]))
        for sentence in open_files.raise_limit({}, with_haproxy=False):
            raise ConfigError(sentence)
        uvloop.run(serve(file, log.place))
    except (ConfigError, CheckpointError, SynthesisError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


async def serve(file: ConfigFile, log: str) -> None:
    """Starts the service and runs it to its end; `log` is where it logs."""
    service = LocalService(file)
    await service.start()
    limits = [f"  Note:  {limit}" for limit in LIMITS.values()]
    url = address_here(file.listens, file.port)
    text = announcement(url, file.app.pipeline.checkpoint, log, limits)
    run = Run.begin(cache_home())

    def say_ready() -> None:
        run.note(url, {})
        print(text, flush=True)

    try:
        await service.run(say_ready)
    finally:
        run.end()


if __name__ == "__main__":
    sys.exit(main())
