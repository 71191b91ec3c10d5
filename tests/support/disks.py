"""Disks: a small one of a test's own, where the system lets a test mount one."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def small_disk(folder: str, size: str) -> list[str] | None:
    """A command that runs what follows it with a disk of that size at a folder, seen by nobody else; None: not allowed here."""
    for privileges in ([], ["--user", "--map-root-user"]):
        mount = f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"'
        command = ["unshare", "--mount", *privileges, "sh", "-c", mount, "sh"]
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return None


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[bool]:
    """A disk at a folder, seen by every process, with mount's options for tmpfs; False: not allowed here."""
    is_allowed = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True).returncode == 0
    try:
        yield is_allowed
    finally:
        if is_allowed:
            subprocess.run(["umount", "--lazy", folder], check=True)
