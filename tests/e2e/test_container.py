"""The image's entry point without a daemon: another user, a read-only tree, a network of its own, a real Prometheus."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import pytest

from serve.config.app_config import PROJECT
from tests.support.image import fill, the
from tests.support.services import needed_program

pytestmark = pytest.mark.nightly

# Runs in the network of the container: waits until the health check is content, speaks, waits until Prometheus has our metrics.
INSIDE = """
set -eu
ip link set lo up
setpriv --reuid=1000 --regid=100 --clear-groups "$PYTHON" {entry} > "$DATA/log" 2>&1 &
service=$!
for i in $(seq 400); do {health} > /dev/null 2>&1 && break; kill -0 $service; sleep 0.5; done
{health}
curl -sf localhost:8000/v1/audio/speech -H 'Content-Type: application/json' \
     -d '{{"input": "Five one one.", "seed": 1, "response_format": "wav"}}' -o "$DATA/hello.wav"
prometheus --config.file="$DATA/prometheus.yaml" --storage.tsdb.path="$DATA/tsdb" --web.listen-address=127.0.0.1:9090 \
     > "$DATA/prometheus.log" 2>&1 &
prometheus=$!
query='http://localhost:9090/api/v1/query?query=ray_chattts_requests_total'
for i in $(seq 180); do curl -s "$query" > "$DATA/answer" || true; grep -q '"value"' "$DATA/answer" && break; sleep 0.5; done
curl -s http://localhost:9090/api/v1/targets > "$DATA/targets"
kill $prometheus
kill $service
wait $service
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(os.getuid() != 0, reason="only root changes user and network")
def test_docker_run_speaks_and_prometheus_sees_it():
    needed_program("prometheus", "prometheus")
    needed_program("curl", "curl")
    needed_program("ip", "iproute2")
    needed_program("setpriv", "util-linux")
    unshare = needed_program("unshare", "util-linux")
    with tempfile.TemporaryDirectory(prefix="image-", dir="/tmp", ignore_cleanup_errors=True) as name:
        root = Path(name)
        root.chmod(0o755)
        workdir = fill(root / "image")
        for path in (workdir, *workdir.rglob("*")):
            path.chmod(0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444)
        data, ray = root / "data", root / "ray"
        for folder in (data, ray):
            folder.mkdir()
            shutil.chown(folder, 1000, 100)
        text = (PROJECT / "container/prometheus.yaml").read_text()
        text = text.replace("/etc/prometheus/rules.yaml", str(PROJECT / "k8s/monitoring/rules.yaml"))
        text = text.replace("/ray/ray/", f"{ray}/ray/").replace("10s", "2s")
        (data / "prometheus.yaml").write_text(text)
        health = json.loads(the("HEALTHCHECK").partition("CMD")[2])
        entry = " ".join(json.loads(the("ENTRYPOINT"))[1:])
        script = INSIDE.format(entry=entry, health=" ".join([f'"$PYTHON" -c "{health[2]}"']))
        inherited = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
        folders = {"PYTHONPATH": str(workdir), "CHATTTS_HOME": str(data), "DATA": str(data), "RAY_TMPDIR": str(ray)}
        environment = inherited | folders | {"PYTHON": sys.executable}
        command = [unshare, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script]
        done = subprocess.run(command, cwd=workdir, env=environment, capture_output=True, text=True, timeout=800)
        log = (data / "log").read_text()
        assert done.returncode == 0, done.stderr[-2000:] + log[-4000:]
        assert "device cpu, float32, as in dev.yaml" in log
        with wave.open(str(data / "hello.wav")) as file:
            assert file.getnframes() > 0.3 * file.getframerate()
        assert '"value"' in (data / "answer").read_text()
        targets = json.loads((data / "targets").read_text())["data"]["activeTargets"]
        health_of = {re.sub(r":\d+$", "", target["labels"]["job"]): target["health"] for target in targets}
        assert health_of == {"ray": "up", "haproxy": "up"}, targets
