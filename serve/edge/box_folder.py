"""Box folder: the files that a box has fetched, and what it remembers over its own end.

In:    the variants of a manifest, the URL of a center
Out:   a checkpoint's folder per complete variant; sentences on what is in the way
Owns:  `edge` in $CHATTTS_HOME: files by their SHA-256, folders of links to them, the record
Never: the last free space of the disk; more bytes of a file than the manifest says; a redirect
"""

import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import requests
from pydantic import Field, ValidationError

from pipeline.checkpoint.layout import CAPABILITIES_FILE, MANIFEST_FILE, PRONUNCIATION_FILE, SPEAKERS_FILE, TOKENIZER_FILE
from pipeline.checkpoint.manifest import file_sha256, read_manifest, write_manifest
from pipeline.config import StrictModel
from pipeline.durable_file import write_durably
from serve.edge.download import RetryPolicy, download, part_of, size_of
from serve.edge.signed_manifest import FileEntry, Variant

LEAST_FREE_BYTES = 128 << 20
LEAST_RATE_BYTES = 256 << 10  # fewer say little of a link
RETRIES = RetryPolicy(connect_timeout_s=5.0, silence_timeout_s=10.0)  # the end of the service waits for a call
MOST_TRIES = 2  # trials that did not come to their end: a process that dies may have died of something else once
MOST_REMEMBERED = 32
READ_BY_TEXT = (TOKENIZER_FILE, CAPABILITIES_FILE, PRONUNCIATION_FILE, SPEAKERS_FILE)
"""files of a checkpoint that are read once, when the service starts"""


class BoxTrouble(Exception):
    """Something is in the way of a variant; the box stays as it is, and tries again later."""


class Superseded(Exception):
    """Another manifest has come, or the service ends."""


class Record(StrictModel):
    """What outlives the process."""

    serial: int = Field(0, ge=0)
    message: str = ""
    """the latest manifest, as it came"""
    tries: dict[str, int] = Field(default_factory=dict)
    """id of a variant -> trials that it has not passed"""


class BoxFolder:
    """The folder of one box."""

    def __init__(self, root: Path, shipped: Path) -> None:
        """
        Args:
            shipped: the folder of the checkpoint that the service has started with; its files need not be fetched.
        """
        self.root, self._files, self._shipped = root, root / "files", shipped
        self._verified: dict[str, Path] = {digest: shipped / path for path, digest in (read_manifest(shipped) or {}).items()}
        self._files.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self.record = Record.model_validate_json((root / "box.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            self.record = Record()

    def remember(self, **changes: object) -> None:
        """Changes the record, on disk too."""
        with self._lock:
            record = Record.model_validate(self.record.model_dump() | changes)
            write_durably(self.root / "box.json", record.model_dump_json().encode(), mode=0o600)
            self.record = record

    def count(self, variant: Variant, tries: int) -> None:
        """Remembers how many trials a variant has not passed; 0 forgets it."""
        others = {name: count for name, count in self.record.tries.items() if name != variant.id}
        latest = list((others | ({variant.id: tries} if tries else {})).items())[-MOST_REMEMBERED:]
        self.remember(tries=dict(latest))

    @property
    def failed(self) -> list[str]:
        """Ids of variants that this box has gone back from; no others are tried."""
        return [name for name, tries in self.record.tries.items() if tries >= MOST_TRIES]

    def has(self, variant: Variant) -> bool:
        """True if every file of a variant is here, and right. Blocking: it may hash them."""
        return all(self._place(file) is not None for file in variant.files)

    def open(self, variant: Variant) -> Path:
        """Returns the folder of a complete variant.

        Raises:
            BoxTrouble: it has another tokenizer or other voices than those that the service has started with.
        """
        folder = self.root / "variants" / variant.id
        if not (folder / MANIFEST_FILE).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            for file in variant.files:
                place = folder / file.path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(self._place(file) or "missing")
            write_manifest(folder, {file.path: file.sha256 for file in variant.files})
        for path in READ_BY_TEXT:
            if _content(folder / path) != _content(self._shipped / path):
                raise BoxTrouble(
                    f"{variant.name} has another {path} than the checkpoint that this box has started with, and texts are read "
                    "with that: name such a checkpoint in pipeline.checkpoint and start the box again"
                )
        return folder

    def fetch(self, variant: Variant, url: str, stop: threading.Event) -> float | None:
        """Fetches what is missing of a variant, in its order. Blocking.

        Args:
            url: of the center.
            stop: ends the call.

        Returns:
            the rate of what came [bytes/s]; None: too little came.

        Raises:
            Superseded: `stop` was set.
            FetchError: the center cannot be reached, or sends other bytes than it has announced.
            BoxTrouble: the disk has not enough space.
        """
        missing = [file for file in variant.files if self._place(file) is None]
        self._check_disk(sum(file.size - size_of(self._part(file)) for file in missing))
        received, began = 0, time.monotonic()
        for file in missing:
            received -= size_of(self._part(file))
            self._fetch(file, f"{url}/files/{file.sha256}", stop)
            received += file.size
        return received / (time.monotonic() - began) if received > LEAST_RATE_BYTES else None

    def keep_only(self, variants: Iterable[Variant], running: Variant | None) -> None:
        """Deletes what belongs to none of these variants, nor to the one that is running. Blocking."""
        staying = [*variants, *([running] if running else [])]
        folders, digests = {variant.id for variant in staying}, {file.sha256 for variant in staying for file in variant.files}
        for folder in (self.root / "variants").glob("*"):
            if folder.name not in folders:
                shutil.rmtree(folder, ignore_errors=True)
        for path in self._files.iterdir():
            if path.name.removesuffix(".part") not in digests:
                path.unlink(missing_ok=True)
                self._verified.pop(path.name, None)

    def _fetch(self, file: FileEntry, url: str, stop: threading.Event) -> None:
        def on_progress(done: int, total: int | None) -> None:
            if stop.is_set():
                raise Superseded
            if max(done, total or 0) > file.size:
                self._part(file).unlink(missing_ok=True)
                raise BoxTrouble(f"{url}: the center sends {max(done, total or 0)} bytes, and has announced {file.size}")
            self._check_disk(0)

        def pause(seconds: float) -> None:
            if stop.wait(seconds):
                raise Superseded

        with requests.Session() as session:
            session.max_redirects = 0
            try:
                path = self._files / file.sha256
                download(session, url, path, file.sha256, RETRIES, on_progress=on_progress, sleep=pause)
            except requests.RequestException as error:
                raise BoxTrouble(f"{url}: {error}") from error

    def _place(self, file: FileEntry) -> Path | None:
        """Returns where a file is, once its bytes are right."""
        path = self._verified.get(file.sha256) or self._files / file.sha256
        if not path.is_file() or path.stat().st_size != file.size:
            return None
        if file.sha256 not in self._verified:
            if file_sha256(path) != file.sha256:
                path.unlink()
                return None
            self._verified[file.sha256] = path
        return path

    def _part(self, file: FileEntry) -> Path:
        return part_of(self._files / file.sha256)

    def _check_disk(self, needed: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free - needed < LEAST_FREE_BYTES:
            raise BoxTrouble(
                f"{self.root} has {free >> 20} MiB of free space; {needed >> 20} MiB are to come, and {LEAST_FREE_BYTES >> 20} "
                "MiB stay free: free some space"
            )


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
