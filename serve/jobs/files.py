"""Files: what clients upload for batches.

In:    bytes, the key that they belong to
Out:   the same, under an id
Owns:  their records and their contents on disk
Never: a file of another key; a half-written file under its own name
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from pipeline.config import StrictModel
from pipeline.durable_file import write_durably
from pipeline.errors import StoreUnavailable
from pipeline.store.store import Store
from serve.errors import ApiError, ErrorSpec

NAMESPACE = "batch-files"
PREFIX = "file-"
_LETTERS = 24
_MODE = 0o600


class FileRecord(StrictModel):
    """What the store knows of a file."""

    tenant: str
    filename: str
    bytes: int
    created_at: float


class Files:
    """Blocking; safe to share between threads."""

    def __init__(self, store: Store, folder: Path, now: Callable[[], float]) -> None:
        """
        Args:
            now: seconds since 1970.
        """
        self._store = store
        self._folder = folder
        self._now = now

    def add(self, tenant: str, filename: str, content: bytes) -> tuple[str, FileRecord]:
        """Keeps a file and returns its id.

        Raises:
            StoreUnavailable
        """
        file_id = PREFIX + secrets.token_hex(_LETTERS // 2)
        record = FileRecord(tenant=tenant, filename=filename, bytes=len(content), created_at=self._now())
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(self._path(file_id), content, mode=_MODE)
        except OSError as error:
            message = f"the file cannot be written: {error.strerror}; try again"
            raise StoreUnavailable(message, place=str(self._folder)) from error
        self._store.put(NAMESPACE, file_id, record.model_dump_json().encode(), replaces=0, keeps=1)
        return file_id, record

    def get(self, tenant: str, file_id: str) -> FileRecord:
        """Returns a file of a tenant.

        Raises:
            ApiError: 404
        """
        found = self.all().get(file_id)
        if found is None or found.tenant != tenant:
            raise no_such_file()
        return found

    def content(self, tenant: str, file_id: str) -> bytes:
        """Returns the content of a file of a tenant.

        Raises:
            ApiError: 404
            StoreUnavailable: it is not on this machine.
        """
        self.get(tenant, file_id)
        try:
            return self._path(file_id).read_bytes()
        except FileNotFoundError:
            message = "the file is not on this machine (jobs.folder)"
            raise StoreUnavailable(message, place=str(self._folder)) from None

    def all(self) -> dict[str, FileRecord]:
        """Returns the files of all tenants by their ids."""
        found = {}
        for entry in self._store.changes(NAMESPACE).entries:
            for _, value in entry.versions[-1:]:
                try:
                    found[entry.key] = FileRecord.model_validate_json(value)
                except ValidationError:
                    continue
        return found

    def remove(self, file_id: str) -> None:
        """Removes a file."""
        self._store.delete(NAMESPACE, file_id)
        self._path(file_id).unlink(missing_ok=True)

    def tidy(self, before: float) -> None:
        """Removes files that are older, and contents that a crash has left without a record."""
        records = self.all()
        for file_id, record in records.items():
            if record.created_at < before:
                self.remove(file_id)
        for path in self._folder.glob(f"{PREFIX}*.jsonl"):
            if path.stem not in records and path.stat().st_mtime < before:
                path.unlink(missing_ok=True)

    def _path(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.jsonl"


def no_such_file() -> ApiError:
    """Returns the refusal of a file that this caller does not have."""
    message = "no such file; GET /v1/files lists yours"
    return ApiError(message, ErrorSpec(404, "not_found_error", "file_not_found", False), param="file_id")
