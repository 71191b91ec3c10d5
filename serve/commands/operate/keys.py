"""Keys: adds, lists and revokes the API keys of a service. A new key is printed once and stored nowhere.

In:    an environment's file, or the store itself; a name
Out:   the key; the list; replicas follow within half a second; with --close, keys.open: false in the file
Never: a key in the store, which holds a hash of the secret
"""

import argparse
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import yaml

from pipeline.durable_file import write_durably
from pipeline.errors import ConfigError, StoreUnavailable
from pipeline.paths import cache_home
from pipeline.store.open import open_store
from pipeline.store.store import Store
from pipeline.types import Lane
from serve.access.api_keys import KEY_ID, NAMESPACE, UNMARKED, KeyRecord, Quota, Scope, make_key, read_record
from serve.access.keys_marker import FORGET, marker_for, revoked_of
from serve.commands.config_path import config_path
from serve.config import folders
from serve.config.config_file import check_file

DEFAULT = KeyRecord.model_fields


def main(arguments: list[str] | None = None) -> int:
    """Runs one of the verbs; exit code 1 if the store cannot be used, 2 for wrong arguments."""
    options = parse(arguments)
    if getattr(options, "close", False) and options.config is None:
        print("--close changes a configuration: name it with --config", file=sys.stderr)
        return 2
    try:
        store = open_store(options.store or store_of(options.config))
        return int(options.run(store, options))
    except (ConfigError, StoreUnavailable) as error:
        print(error, file=sys.stderr)
        return 1


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Returns the options; `run` is the function of the verb."""
    parser = argparse.ArgumentParser(
        prog="chattts-serve keys",
        description="Add, list and revoke the API keys of a service. A new key is printed once; the store holds only its hash.",
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--config", type=config_path, help="the configuration that names the store (default: the store of this machine)"
    )
    where.add_argument("--store", help="redis://... or the path of a file, instead of the configuration's store")
    verbs = parser.add_subparsers(required=True, metavar="add|list|revoke|forget")
    adding = verbs.add_parser("add", parents=[where], help="make a key and print it once")
    add_key_options(adding)
    adding.add_argument("--close", action="store_true", help="with --config: write keys.open: false where the file says true")
    adding.set_defaults(run=add)
    verb = verbs.add_parser("list", parents=[where], help="print id, name, scopes, lanes and quota of every key")
    verb.set_defaults(run=show)
    verb = verbs.add_parser("revoke", parents=[where], help="revoke a key")
    verb.add_argument("id", type=known_shape, help="the id that `list` prints")
    verb.set_defaults(run=revoke)
    verb = verbs.add_parser("forget", parents=[where], help="forget that there were keys: this machine needs no key again")
    verb.set_defaults(run=forget)
    parser.epilog = adding.format_usage()
    return parser.parse_args(arguments)


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Declares the name, the rights and the quota of a new key."""
    parser.add_argument("name", help="a name for people, for example the owner's")
    scopes = "some of speech,voices,text,admin (default: all but admin)"
    parser.add_argument("--scopes", type=chosen(Scope), default=DEFAULT["scopes"].default, help=scopes)
    lanes = "some of interactive,standard,bulk (default: all)"
    parser.add_argument("--lanes", type=chosen(Lane), default=tuple(Lane), help=lanes)
    for limit, field in Quota.model_fields.items():
        kind = float if float in (field.annotation, *get_args(field.annotation)) else int
        text = f"{field.description}; `none`: no limit (default: {'none' if field.default is None else f'{field.default:g}'})"
        parser.add_argument(f"--{limit.replace('_', '-')}", type=amount(kind), default=field.default, help=text)


def add(store: Store, options: argparse.Namespace) -> int:
    """Makes a key, stores its hash and prints it."""
    try:
        quota = Quota(**{name: getattr(options, name) for name in Quota.model_fields})
        key, key_id, record = make_key(options.name, options.scopes, options.lanes, quota)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    mark = marker_for(store, cache_home())
    try:
        mark.set()  # before the key: no key may exist without the mark
    except OSError as error:
        if options.config is None or check_file(options.config).app.keys.open is not False:
            print(f"{mark.path} cannot be written ({error.strerror}): {UNMARKED}", file=sys.stderr)
    store.put(NAMESPACE, key_id, record.model_dump_json().encode(), replaces=0, keeps=1)
    print(key)
    print(f"id {key_id}; this is the only time the key is shown", file=sys.stderr)
    return 0 if options.config is None else warn_if_open(options.config, close=options.close)


def warn_if_open(config: Path, *, close: bool) -> int:
    """Says that a service stays open although there is a key, or closes its configuration; exit code 1 if that fails.

    Raises:
        ConfigError: the file is wrong.
    """
    keys = check_file(config).app.keys
    if keys.open is not True:
        return 0
    if not close:
        print(f"WARNING: {config}: {keys.says_open()}. `keys add NAME --close` or keys.open: false ends that", file=sys.stderr)
        return 0
    try:
        text = config.read_text(encoding="utf-8")
        write_durably(config, closed(text).encode(), mode=config.stat().st_mode & 0o777)
    except OSError as error:
        print(f"{config} cannot be written ({error.strerror}): set keys.open: false in it", file=sys.stderr)
        return 1
    print(
        f"{config} has keys.open: false now, which holds from the next start or `serve deploy`; a container writes its file "
        "at each start: leave CHATTTS_KEYS unset there, or set it to required",
        file=sys.stderr,
    )
    return 0


def closed(text: str) -> str:
    """Returns the text of a configuration with keys.open: false, and with everything else as it was."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in ("applications", 0, "args", "keys", "open"):
        node = node.value[key] if isinstance(key, int) else next(value for name, value in node.value if name.value == key)
    return text[: node.start_mark.index] + "false" + text[node.end_mark.index :]


def show(store: Store, options: argparse.Namespace) -> int:
    """Prints a line per key."""
    entries = [entry for entry in store.changes(NAMESPACE).entries if entry.versions]
    if not entries:
        print("there are no keys; `add NAME` makes one", file=sys.stderr)
    for entry in entries:
        version, value = entry.versions[-1]
        try:
            record = read_record(entry.key, version, value)
        except ValueError as error:
            print(f"{entry.key}  {error}")
            continue
        quota = "  ".join(f"{name}={value}" for name, value in record.quota if value is not None)
        print(f"{entry.key}  {record.name}  {record.created}  {','.join(record.scopes)}  {','.join(record.lanes)}  {quota}")
    return 0


def revoke(store: Store, options: argparse.Namespace) -> int:
    """Deletes a key. It is remembered first: a deletion whose answer is lost revokes it too."""
    revoked_of(store, cache_home()).add([options.id])
    if not store.delete(NAMESPACE, options.id):
        print("there is no key with this id; `list` shows them", file=sys.stderr)
        return 1
    if not any(entry.versions for entry in store.changes(NAMESPACE).entries):
        print(f"no key is left, so every request is refused; {FORGET} opens the service to this machine again", file=sys.stderr)
    return 0


def forget(store: Store, options: argparse.Namespace) -> int:
    """Removes the mark of a service whose keys are lost; with a Redis store, on each of its machines."""
    keys = sum(bool(entry.versions) for entry in store.changes(NAMESPACE).entries)
    if keys:
        print(f"{store.place} holds {keys} keys: nothing is forgotten; `revoke` removes a key", file=sys.stderr)
        return 1
    mark = marker_for(store, cache_home())
    try:
        mark.remove()
    except OSError as error:
        print(f"{mark.path} cannot be removed: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def store_of(config: Path | None) -> str:
    """Returns the store in which an environment keeps its keys.

    Raises:
        ConfigError: the environment's file is wrong.
    """
    if config is not None:
        app = check_file(config).app
        named = app.keys.store or app.voices.store
        return folders.store_of(named)
    return folders.store_of(None)


def chosen(kind: type[StrEnum]) -> Callable[[str], tuple[StrEnum, ...]]:
    """Returns a parser of names separated by commas, for argparse."""

    def read(text: str) -> tuple[StrEnum, ...]:
        return tuple(kind(name.strip()) for name in text.split(","))

    read.__name__ = kind.__name__.lower()  # argparse prints it with a wrong value
    return read


def known_shape(text: str) -> str:
    """Returns the id if it has the shape of one, for argparse."""
    if not KEY_ID.fullmatch(text):
        raise argparse.ArgumentTypeError("an id has ten letters and digits; a whole key has it between its dashes")
    return text


def amount(kind: type[int] | type[float]) -> Callable[[str], float | None]:
    """Returns a parser of a number or `none`, for argparse."""

    def read(text: str) -> float | None:
        return None if text == "none" else kind(text)

    read.__name__ = f"{kind.__name__} or none"
    return read


if __name__ == "__main__":
    sys.exit(main())
