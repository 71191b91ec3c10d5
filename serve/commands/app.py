"""App: the command line `chattts-serve`, built from the table of commands.

In:    the words of the command line
Out:   help, completion, or the exit code of the command that was run
Never: an option of a command: the parser in the command's own module reads everything after the command's name
"""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from serve.commands.commands import COMMANDS, GROUPS, Command, run
from serve.commands.config_path import SHIPPED

PACKAGE = "chattts-serve"
EPILOG = (
    "chattts-serve COMMAND --help explains a command.\n\n"
    "Exit codes: 0 fine, 1 failed, 2 wrong usage, 130 interrupted; a command with more codes lists them in its help."
)


class PassThrough(TyperCommand):
    """A command that leaves all its words, `--help` and `--` included, to the parser of its module."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps the words as they are; completion alone reads them as Typer does."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        ctx.params = {"words": args}
        return []


def build_app() -> typer.Typer:
    """Returns the command line with every command of the table."""
    # Help in plain text: importing rich would double the time of `--help` and of every completion.
    app = typer.Typer(no_args_is_help=True, epilog=EPILOG, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(help="ChatTTS as a text-to-speech service: start it, operate it.")(_options)
    groups = {name: typer.Typer(no_args_is_help=True, help=text, rich_markup_mode=None) for name, text in GROUPS.items()}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        parent = groups[group] if group else app
        parent.command(name, cls=PassThrough, help=command.help, add_help_option=False)(_runner(command))
    for name, group_app in groups.items():
        app.add_typer(group_app, name=name)
    return app


def _runner(command: Command) -> Callable[[list[str] | None], None]:
    def complete(incomplete: str) -> Iterator[str]:
        return (word for word in _suggestions(command) if word.startswith(incomplete))

    def call(words: Annotated[list[str] | None, typer.Argument(autocompletion=complete)] = None) -> None:
        raise typer.Exit(run(command, words or []))

    return call


def _suggestions(command: Command) -> list[str]:
    """Words that fit after a command's name: its verbs, or the configurations that come with the package and those here."""
    here = [str(path) for path in sorted(Path().glob("*.yaml"))]
    return [*command.verbs, *((*sorted(SHIPPED), *here) if command.takes_config else ())]


def _print_version(requested: bool) -> None:
    if requested:
        metadata = importlib.import_module("importlib.metadata")  # takes a third of the time of `--help`
        typer.echo(f"{PACKAGE} {metadata.version(PACKAGE)}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Declares the options of `chattts-serve` itself."""


app = build_app()
