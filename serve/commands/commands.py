"""Commands: the table of what `chattts-serve` offers, and how one command runs.

In:    a command and the words after it
Out:   the command's exit code
Owns:  the names of the commands
Never: importing a command's module before that command runs: `--help` must not load PyTorch or Ray
"""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

FAILED = 1


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the command line."""

    name: str
    """its words, `weights fetch` for example"""
    module: str
    """has `main(arguments) -> exit code`"""
    help: str
    """one line for people"""
    extra: str = ""
    """the extra of the package that installs what it imports; empty: nothing more is needed"""
    verbs: tuple[str, ...] = ()
    """the first words it takes, for completion"""
    takes_config: bool = False
    """its first argument is a configuration file"""


GROUPS = {
    "weights": "Fetch, generate and convert model weights.",
    "config": "Look at configuration files.",
}

COMMANDS = (
    Command("start", "serve.commands.launch.start", "Start the service and run it until Ctrl-C.", takes_config=True),
    Command("status", "serve.commands.operate.service_status", "Show the services of this machine."),
    Command("stop", "serve.commands.operate.stop_service", "Stop a service of this machine: its own processes alone."),
    Command("say", "serve.commands.say", "Speak a text into a sound file."),
    Command("read", "serve.commands.read", "Speak a book into a sound file, here or by a service (--url)."),
    Command("doctor", "serve.commands.doctor", "Check whether this machine can run the service.", takes_config=True),
    Command(
        "keys",
        "serve.commands.operate.keys",
        "Add, list and revoke API keys.",
        verbs=("add", "list", "revoke", "forget"),
    ),
    Command("weights fetch", "serve.commands.weights.fetch", "Download and verify the real ChatTTS weights (1.2 GB)."),
    Command("label", "serve.commands.label", "Measure the voices of a checkpoint, and name them."),
    Command("pack", "serve.commands.weights.pack_checkpoint", "Write a checkpoint with smaller files."),
    Command("weights make", "serve.commands.weights.make_random", "Generate a checkpoint with random weights."),
    Command(
        "weights convert",
        "serve.commands.weights.convert_voice",
        "Convert a .pt speaker file into a speaker string.",
        extra="torch",
    ),
    Command(
        "config show",
        "serve.commands.operate.show_config",
        "Print every value, its default, unit and meaning.",
        takes_config=True,
    ),
    Command("config check", "serve.commands.operate.check_config", "Check configuration files.", takes_config=True),
    Command(
        "drain",
        "serve.commands.operate.drain",
        "Refuse new requests, then wait until every stream has ended.",
        extra="ray",
        takes_config=True,
    ),
    Command("center", "serve.commands.operate.run_center", "Run the center of a fleet of boxes.", extra="edge"),
    Command("mcp", "serve.commands.mcp_server", "Offer a running service to agents (MCP)."),
    Command("env", "serve.commands.launch.ray_environment", "Print the environment of Ray's processes, for `ray start`."),
    Command("size", "serve.commands.operate.size", "Write a configuration for this machine's GPU.", extra="torch"),
    Command("simulate", "serve.commands.operate.simulate", "Show how a fleet of GPUs serves so many listeners."),
    Command(
        "leave",
        "serve.commands.operate.leave_node",
        "Take this machine out of a cluster without cutting a stream.",
        extra="ray",
    ),
)


def run(command: Command, arguments: Sequence[str]) -> int:
    """Imports a command's module and runs it.

    Args:
        command: one of `COMMANDS`.
        arguments: the words after the command's name, for the command's own parser.

    Returns:
        The exit code: 0 fine, 1 failed, 2 wrong usage; a command with more codes lists them in its `--help`.
    """
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if not command.extra:
            raise
        print(f"{error.name} is not installed: pip install 'chattts-serve[{command.extra}]'", file=sys.stderr)
        return FAILED
    try:
        return int(module.main(list(arguments)))
    except BrokenPipeError:  # whoever read the output has left: nothing can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error
        print(f"chattts-serve {command.name}: {reason}", file=sys.stderr)
        return FAILED
