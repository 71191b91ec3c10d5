"""The image, built from the Dockerfile by buildah without a daemon or registry, and run as `docker run --read-only` does."""

import json
import os
import re
import ssl
import subprocess
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.config.app_config import PROJECT
from tests.support.image import the
from tests.support.services import needed_program

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes a root file system"),
]
BASE = "localhost/base"  # in place of python:3.11-slim-bookworm: Debian's own Python
PACKAGES = "ca-certificates,python3,python3-pip,python3-venv,python3-dev"

# A namespace of its own for files, processes and network: the image read-only, /data and /tmp to write in, no capability.
CONTAINER = """
set -eu
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o mode=1777,size=1g tmpfs "$ROOT/dev/shm"
mount --bind "$DATA" "$ROOT/data"
ip link set lo up
ulimit -n 20000
env -i HOME=/home/ray PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin {environment} chroot "$ROOT" \
    setpriv --reuid=1000 --regid=100 --clear-groups --bounding-set=-all --no-new-privs \
    sh -c 'cd {workdir}; touch /home/ray/file 2>/dev/null && exit 9; exec {entry}' > "$DATA/log" 2>&1 &
service=$!
for i in $(seq 600); do curl -sf localhost:8000/ready > /dev/null && break; kill -0 $service; sleep 0.5; done
curl -sf localhost:8000/v1/audio/speech -H 'Content-Type: application/json' \
     -d '{{"input": "Five one one.", "seed": 1, "response_format": "wav"}}' -o "$DATA/hello.wav"
kill -TERM $service
wait $service
"""


def run(*words: str, **variables: str) -> str:
    done = subprocess.run(words, cwd=PROJECT, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """The file system of the image."""
    buildah, debootstrap = needed_program("buildah", "buildah"), needed_program("debootstrap", "debootstrap")
    with tempfile.TemporaryDirectory(prefix="built-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        storage = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
        build = (buildah, "--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        base = folder / "base"
        run(debootstrap, "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(base))
        (base / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink()
        (base / "usr/bin/python").symlink_to("python3")
        container = run(*build, "from", "scratch", **storage)
        run(*build, "add", container, str(base), "/", **storage)
        run(*build, "commit", "--rm", container, BASE, **storage)
        (folder / "pip.conf").write_text("[global]\ncert = /run/secrets/ca\n")
        secrets = ("--secret", f"id=pip,src={folder}/pip.conf")
        secrets += ("--secret", f"id=ca,src={os.environ.get('SSL_CERT_FILE') or ssl.get_default_verify_paths().cafile}")
        options = ("--format", "docker", "--network", "host", "--layers=false", "--build-arg", f"BASE={BASE}", *secrets)
        run(*build, "bud", *options, "--tag", "chattts-serve", ".", **storage)
        container = run(*build, "from", "chattts-serve", **storage)
        yield Path(run(*build, "mount", container, **storage))
        run(*build, "umount", container, **storage)


def test_the_built_image_speaks_read_only_as_its_user_and_ends_by_sigterm(root: Path, tmp_path: Path):
    needed_program("curl", "curl")
    unshare = needed_program("unshare", "util-linux")
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 1000, 100)
    entry, workdir = " ".join(json.loads(the("ENTRYPOINT"))), the("WORKDIR")
    environment = " ".join(re.findall(r"[A-Z_]+=\S+", the("ENV")))
    script = CONTAINER.format(environment=environment, workdir=workdir, entry=entry)
    command = [unshare, "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", script]
    folders = {"ROOT": str(root), "DATA": str(data)}
    done = subprocess.run(command, env=os.environ | folders, capture_output=True, text=True, check=False, timeout=900)
    log = (data / "log").read_text()
    assert done.returncode == 0, done.stderr[-2000:] + log[-4000:]
    assert "device cpu, float32, as in dev.yaml" in log
    with wave.open(str(data / "hello.wav")) as file:
        assert file.getnframes() > 0.3 * file.getframerate()
