"""Checkpoints: finds a checkpoint by name, and generates the random ones on first use.

In:    demo, small-random, full-random, hub:2Noise/ChatTTS or a folder
Out:   the folder that holds asset/
Owns:  the cache folder
Never: torch (processes without a model load the tokenizer), the network
"""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoint.layout import FILES
from pipeline.checkpoint.random_model import RANDOM_MODELS
from pipeline.checkpoint.random_weights import FOLDER_VERSION, generate, size
from pipeline.errors import CheckpointError
from pipeline.paths import weights_home

DEMO = "demo"
DEMO_FOLDER = Path(__file__).resolve().parents[1] / "assets" / DEMO  # trained by scripts/train_demo, part of the package
HUB_NAME = "2Noise/ChatTTS"
FETCH_COMMAND = "chattts-serve weights fetch --accept-license cc-by-nc-4.0"
ABANDONED_AFTER_S = 6 * 3600  # a draft folder this old belongs to a process that died


def hub_folder(home: Path) -> Path:
    """Returns the folder into which serve/commands/weights/fetch.py downloads the real checkpoint."""
    return weights_home(home) / "hub" / HUB_NAME


def generated_folder(kind: str, home: Path) -> Path:
    """Returns the folder of a generated checkpoint of this version."""
    return home / f"{kind}-v{FOLDER_VERSION}"


@dataclass(frozen=True, slots=True)
class Licence:
    """The licence of a checkpoint's weights."""

    name: str
    url: str | None
    attribution: str
    commercial_use: bool | None
    """None: unknown"""


def licence_of(name: str) -> Licence:
    """Returns the licence of a checkpoint's weights, by its configured name."""
    if name == DEMO:
        origin = "trained on synthetic speech of CMU flite's voices rms and slt; see NOTICE"
        return Licence("AGPL-3.0-or-later, as this project", None, origin, commercial_use=True)
    if name in RANDOM_MODELS:
        return Licence("none needed: random numbers, generated here", None, "", commercial_use=True)
    if name.startswith("hub:"):
        url = "https://creativecommons.org/licenses/by-nc/4.0/"
        return Licence("CC-BY-NC-4.0", url, f"{name.removeprefix('hub:')} by 2noise", commercial_use=False)
    return Licence("unknown: see the source of the weights", None, "", commercial_use=None)


def resolve(name: str, home: Path) -> Path:
    """Finds a checkpoint; the random ones are generated on first use.

    Args:
        name: demo, small-random, full-random, hub:2Noise/ChatTTS or a folder.
        home: the cache folder, as paths.cache_home() returns it.

    Returns:
        the folder that holds asset/.

    Raises:
        CheckpointError: there is no such checkpoint; the message says what to do.
    """
    if name == DEMO:
        return DEMO_FOLDER
    if name in RANDOM_MODELS:
        return _generated_once(name, home)
    if name.startswith("hub:"):
        return _fetched(name.removeprefix("hub:"), hub_folder(home))
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise CheckpointError(
            f"checkpoint {name!r}: no such folder; allowed are {DEMO}, {', '.join(RANDOM_MODELS)}, hub:{HUB_NAME} or a folder"
        )
    if not (folder / "asset").is_dir():
        raise CheckpointError(f"checkpoint {name!r}: the folder holds no asset/; give the folder above asset/")
    return folder


def _fetched(repository: str, folder: Path) -> Path:
    if repository != HUB_NAME:
        raise CheckpointError(f"checkpoint hub:{repository}: only hub:{HUB_NAME} is known; give a folder for any other")
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(
            f"checkpoint hub:{HUB_NAME}: {folder} lacks {', '.join(missing)}. Its licence is CC BY-NC 4.0 (no commercial use); "
            f"to accept it and fetch the files: {FETCH_COMMAND}"
        )
    return folder


def _generated_once(kind: str, home: Path) -> Path:
    """Returns the generated folder. Processes may do this at the same time: each writes a draft, the first rename wins."""
    folder = generated_folder(kind, home)
    if folder.is_dir():
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(kind, home)
        draft = Path(tempfile.mkdtemp(prefix=_draft_prefix(kind), dir=home))
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {kind}: {home} cannot be written ({error}); set CHATTTS_HOME to a folder that can"
        ) from error
    try:
        generate(kind, draft)
        draft.chmod(0o755)  # mkdtemp's 0700 would exclude a service that runs as another user
        draft.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise CheckpointError(
                f"checkpoint {kind}: {folder} could not be generated ({error}); {size(kind)} bytes are needed"
            ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _draft_prefix(kind: str) -> str:
    return f".{kind}-draft-"


def _remove_abandoned(kind: str, home: Path) -> None:
    for draft in home.glob(f"{_draft_prefix(kind)}*"):
        try:
            abandoned = time.time() - draft.stat().st_mtime > ABANDONED_AFTER_S
        except FileNotFoundError:  # its process has just finished
            continue
        if abandoned:
            shutil.rmtree(draft, ignore_errors=True)
