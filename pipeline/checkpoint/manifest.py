"""Manifest: reads the files of a checkpoint and checks each against its SHA256SUMS.

In:    a checkpoint's folder
Out:   the bytes of a file, exactly those that were hashed
Never: what the files mean
"""

import hashlib
import string
from pathlib import Path

from pipeline.checkpoint.layout import FILES, MANIFEST_FILE, NEEDED_FILES, SMALL_FILES, VOCODER_FILES
from pipeline.errors import CheckpointError


def read_manifest(root: Path) -> dict[str, str] | None:
    """Returns SHA256SUMS as file -> hash; None for a checkpoint without a manifest."""
    path = root / MANIFEST_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {_remedy(root)}") from error
    manifest: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        digest, separator, file = line.partition("  ")
        if not separator or not file or len(digest) != 64 or set(digest) - set(string.hexdigits):
            raise CheckpointError(f"{path}: line {number} is not '<sha256>  <file>'; {_remedy(root)}")
        manifest[file] = digest.lower()
    return manifest


def manifest_hash(root: Path) -> str:
    """Returns a hash of SHA256SUMS that stands for the voice; empty for a checkpoint without a manifest.

    A small vocoder beside the full one does not change it.
    """
    path = root / MANIFEST_FILE
    if not path.is_file():
        return ""
    lines = path.read_bytes().splitlines(keepends=True)
    return hashlib.sha256(b"".join(line for line in lines if line[66:].strip().decode() not in SMALL_FILES)).hexdigest()


def write_manifest(root: Path, hashes: dict[str, str]) -> None:
    """Writes SHA256SUMS, as `sha256sum -c` reads it."""
    lines = [f"{hashes[file]}  {file}\n" for file in sorted(hashes)]
    (root / MANIFEST_FILE).write_text("".join(lines), encoding="utf-8")


def read_verified(root: Path, file: str) -> bytes:
    """Returns the bytes of one file. With a manifest, these very bytes have been hashed.

    Raises:
        CheckpointError: the file is missing, not listed in the manifest, or has another hash.
    """
    manifest = read_manifest(root)
    path = root / file
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: the file is missing; {_remedy(root)}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); {_remedy(root)}") from error
    if manifest is not None:
        _check_hash(root, file, hashlib.sha256(content).hexdigest(), manifest)
    return content


def verify_files(root: Path) -> tuple[str, ...]:
    """Checks the hash of every file of the checkpoint, without keeping any in memory.

    Returns:
        the files with a confirmed hash: all that are listed; none without a manifest.

    Raises:
        CheckpointError: a needed file is missing, or a file is not listed or has another hash.
    """
    manifest = read_manifest(root)
    present = [file for file in (*FILES, *SMALL_FILES) if (root / file).is_file()]
    is_small = not any((root / file).is_file() for file in VOCODER_FILES["full"]) and (root / SMALL_FILES[0]).is_file()
    needed = [file for file in NEEDED_FILES if not (is_small and file in VOCODER_FILES["full"])]
    promised = [*needed, *(SMALL_FILES if is_small else ()), *(manifest or {})]
    for file in promised:
        if not (root / file).is_file():
            raise CheckpointError(f"{root / file}: the file is missing; {_remedy(root)}")
    if manifest is None:
        return ()
    for file in dict.fromkeys([*present, *manifest]):
        _check_hash(root, file, file_sha256(root / file), manifest)
    return tuple(manifest)


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in lower-case hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _check_hash(root: Path, file: str, actual: str, manifest: dict[str, str]) -> None:
    path = root / file
    expected = manifest.get(file)
    if expected is None:
        raise CheckpointError(f"{path}: not listed in {MANIFEST_FILE}, so it cannot be verified; {_remedy(root)}")
    if actual != expected:
        twin = next((other for other, digest in manifest.items() if digest == actual), None)
        hint = f" (these are the bytes of {twin})" if twin else ""
        raise CheckpointError(f"{path}: expected SHA-256 {expected}, found {actual}{hint}; {_remedy(root)}")


def _remedy(root: Path) -> str:
    return f"delete {root} and generate or fetch the checkpoint again"
