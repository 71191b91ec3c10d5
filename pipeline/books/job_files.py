"""Job files: what is on the disk of one job: its script, the samples of each part, and what is assembled of them.

In:    scripts, samples, notes about them
Out:   the same, after any crash
Owns:  one folder
Never: a half-written file under its own name; a second copy of what equal requests share

    script-<name>.json    what is spoken; each writing has a name of its own, so that whoever wrote it may remove it
    cover-<hash>          its picture
    <key>.pcm             the samples of a part: 16 bits, little-endian, mono
    <key>.json            what is known of these samples; written before them, so who finds samples finds their notes
    result-<hash>.<ext>   assembled from all of that, and made again if it is lost
    claims/<key>          a part that a process speaks, for other processes that speak the same job; only a hint
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from pipeline.books.script import KEY_LETTERS, Script, content_hash, read_script
from pipeline.durable_file import write_durably

SAMPLE_BYTES = 2
_MODE = 0o600
_KEPT = ("script-", "cover-", ".script-", ".cover-")  # by whoever wants them spoken
_SCRIPTS_IN_MEMORY = 16


@dataclass(frozen=True, slots=True)
class Cue:
    """What is said when, within one part."""

    start: int
    stop: int
    """samples [start, stop)"""
    text: str
    voice: str | None = None
    """who says it; None: the voice of the part"""


@dataclass(frozen=True, slots=True)
class PartNotes:
    """What is known of the samples of a part."""

    cues: tuple[Cue, ...] = ()
    warnings: Mapping[str, int] | None = None
    """code of a text warning -> how often"""


class JobFiles:
    """The files of one job. Several processes may write the same ones: equal names have equal contents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Makes the folder; what is kept later is an error once that is removed."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def keep_script(self, script: Script) -> str:
        """Writes a script and returns its name: its hash, and letters that no other writing has."""
        content = script.to_json()
        name = f"{content_hash(content.decode())}{secrets.token_hex(4)}"
        write_durably(self._script_file(name), content, mode=_MODE)
        return name

    def script(self, name: str) -> Script:
        """Returns the script of a name.

        Raises:
            OSError: it is not here.
            ValueError: it is of another release.
        """
        return _read_script(self._script_file(name))

    def remove_script(self, name: str) -> None:
        """Removes a script that nobody wants spoken any more."""
        self._script_file(name).unlink(missing_ok=True)

    def keep_cover(self, picture: bytes) -> str:
        """Writes a picture and returns its hash."""
        name = hashlib.sha256(picture).hexdigest()[:KEY_LETTERS]
        write_durably(self._cover_file(name), picture, mode=_MODE)
        return name

    def cover(self, name: str) -> bytes:
        """Returns a picture; nothing for no name."""
        return self._cover_file(name).read_bytes() if name else b""

    def keep(self, key: str, pcm: bytes, notes: PartNotes) -> None:
        """Writes the samples of a part; returns when they are on disk."""
        write_durably(self.folder / f"{key}.json", json.dumps(asdict(notes)).encode(), mode=_MODE)
        write_durably(self.pcm_file(key), pcm, mode=_MODE)

    def claim(self, key: str) -> bool:
        """Claims a part; False if it is finished, claimed by another process, or its job is gone."""
        if self.pcm_file(key).exists():
            return False
        try:
            self._claims.mkdir(mode=0o700, exist_ok=True)
            (self._claims / key).touch(mode=_MODE, exist_ok=False)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def claims(self, left: Iterable[str] = ()) -> dict[str, int | None]:
        """Returns how many samples each part has that was claimed, by its key; None: it is not finished.

        Args:
            left: parts that others speak, which are told once they are finished, claimed or not.
        """
        try:
            keys = os.listdir(self._claims)
        except OSError:
            keys = []
        finished = {key: samples for key in left if (samples := self._samples(key)) is not None}
        return {key: self._samples(key) for key in keys} | finished

    def _samples(self, key: str) -> int | None:
        try:
            return self.pcm_file(key).stat().st_size // SAMPLE_BYTES
        except OSError:
            return None

    def release(self, keys: Iterable[str]) -> None:
        """Gives up claims."""
        for key in keys:
            with suppress(OSError):
                (self._claims / key).unlink()

    def lengths(self) -> dict[str, int]:
        """Returns how many samples each finished part has, by its key."""
        sizes = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".pcm") and not entry.name.startswith("."):
                        sizes[entry.name.removesuffix(".pcm")] = entry.stat().st_size // SAMPLE_BYTES
        except FileNotFoundError:
            return {}
        return sizes

    def notes(self, key: str) -> PartNotes:
        """Returns what is known of the samples of a part; nothing if it has just been removed, or is of another release."""
        try:
            fields = json.loads((self.folder / f"{key}.json").read_bytes())
            return PartNotes(tuple(Cue(**cue) for cue in fields["cues"]), fields["warnings"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return PartNotes()

    def pcm_file(self, key: str) -> Path:
        """Returns the path of a part's samples."""
        return self.folder / f"{key}.pcm"

    def result_file(self, name: str) -> Path:
        """Returns the path of an assembled file."""
        return self.folder / f"result-{name}"

    def keep_only(self, keys: frozenset[str], result: str) -> None:
        """Removes what belongs to other parts and results, and drafts of them that a crash has left.

        Who writes a draft meanwhile has to write it again.
        """
        shutil.rmtree(self._claims, ignore_errors=True)
        names = {f"result-{result}", *(f"{key}{end}" for key in keys for end in (".pcm", ".json"))}
        for path in list(self.folder.iterdir()):
            if path.name not in names and path != self._claims and not path.name.startswith(_KEPT):
                path.unlink(missing_ok=True)

    def size(self) -> int:
        """Returns how many bytes the files have."""
        try:
            return sum(path.stat().st_size for path in self.folder.iterdir())
        except FileNotFoundError:
            return 0

    def remove(self) -> None:
        """Removes all files, those too that somebody is writing now: their folder is first given another name."""
        removed = self.folder.with_name(f".{self.folder.name}")
        shutil.rmtree(removed, ignore_errors=True)
        try:
            self.folder.rename(removed)
        except OSError:  # it is not there, or what was removed before is still there
            shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(removed, ignore_errors=True)  # meanwhile a job of the same id may begin anew, in a folder of its own

    @property
    def _claims(self) -> Path:
        return self.folder / "claims"

    def _cover_file(self, name: str) -> Path:
        return self.folder / f"cover-{name}"

    def _script_file(self, name: str) -> Path:
        return self.folder / f"script-{name}.json"


@lru_cache(maxsize=_SCRIPTS_IN_MEMORY)
def _read_script(path: Path) -> Script:
    return read_script(path.read_bytes())
