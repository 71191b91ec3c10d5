"""Check: everything of a start that needs Ray's own classes or the checkpoint. `python -m serve.commands.launch.check CONFIG`

In:    a configuration file, and what the command line says in its place
Out:   Settings as a line on stdout; or why it cannot start, on stderr, and exit code 1
Never: starting anything; staying: serve/commands/launch/start.py waits without what this has loaded
"""

import argparse
import sys
from pathlib import Path

import yaml

from pipeline.checkpoint.locate import resolve
from pipeline.errors import CheckpointError, ConfigError
from pipeline.paths import cache_home
from serve.commands.launch.needs_torch import torch_problem, unused_gpu
from serve.commands.launch.settings import Settings
from serve.config.config_file import PORT, ConfigFile, check_file
from serve.config.folders import can_be_written, check_folders

SERVES_GRACE_S = 20.0  # Serve's own default
INTERRUPTED = 130


def settings_of(checked: ConfigFile) -> Settings:
    """Returns what a start needs of a configuration."""
    return Settings(
        checked.path,
        checked.listens,
        checked.port,
        checked.app.pipeline.checkpoint,
        checked.app.limits.start_timeout_s,
        float(checked.deployment("Ingress").get("graceful_shutdown_timeout_s", SERVES_GRACE_S)),
        checked.is_one_process,
    )


def changed(config: Path, host: str | None, port: str | None, checkpoint: str | None) -> Path:
    """Returns a file that has what is not None in place of what `config` has; `config` itself where there is nothing.

    Raises:
        ConfigError: the file or the port is wrong.
        OSError: the cache folder cannot be written.
    """
    if host is port is checkpoint is None:
        return config
    if port is not None and not port.isdecimal():
        raise ConfigError(f"--port must be a number, found {port}")
    document = check_file(config).document
    args, http = document["applications"][0].setdefault("args", {}), document.setdefault("http_options", {})
    if host is not None:
        http["host"] = host
    if port is not None:
        http["port"] = int(port)
    if checkpoint is not None:
        args.setdefault("pipeline", {})["checkpoint"] = checkpoint
    path = cache_home().absolute() / f"started-{http.get('port', PORT)}.yaml"
    args["source"] = str(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True), encoding="utf-8")
    return path


def main() -> int:
    """Checks the file, then finds or generates its checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    for option in ("--host", "--port", "--checkpoint"):
        parser.add_argument(option)
    args = parser.parse_args()
    try:
        checked = check_file(changed(args.config, args.host, args.port, args.checkpoint))
        if problem := torch_problem(checked.app.pipeline):
            raise ConfigError("; ".join(problem))
        if not can_be_written(cache_home()):
            raise ConfigError(f"cannot write in {cache_home()}: CHATTTS_HOME names another folder")
        check_folders(checked.app)
        if note := unused_gpu(checked.app.pipeline):
            print("; ".join(note), file=sys.stderr)
        if warning := checked.app.keys.says_open():
            print(warning, file=sys.stderr)
        resolve(checked.app.pipeline.checkpoint, cache_home())
    except (ConfigError, CheckpointError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cannot write in {cache_home()}: {error.strerror}; CHATTTS_HOME names another folder", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    print(settings_of(checked).as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
