"""Kubernetes config: embeds configs/*.yaml into the Kubernetes overlays.

In:    the configuration each overlay deploys
Out:   k8s/overlays/*/serve-config.yaml, the same text as a patch of the RayService, written by `python -m scripts.generate`
Owns:  those files
Never: a value of its own
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = {"dev": "configs/k8s-dev.yaml", "prod": "configs/k8s-prod.yaml"}

HEAD = """\
# Written by `python -m scripts.generate` from {config}: edit that file.
apiVersion: ray.io/v1
kind: RayService
metadata:
  name: chattts
spec:
  serveConfigV2: |
"""


def patch_of(config: str) -> str:
    """Returns the patch that carries one configuration, comments included."""
    lines = (ROOT / config).read_text(encoding="utf-8").splitlines()
    return HEAD.format(config=config) + "".join(f"    {line}\n" if line else "\n" for line in lines)


def files() -> dict[Path, str]:
    """Returns path -> text of every generated file."""
    return {patch_path(overlay): patch_of(config) for overlay, config in OVERLAYS.items()}


def patch_path(overlay: str) -> Path:
    """Returns the path of an overlay's patch."""
    return ROOT / "k8s" / "overlays" / overlay / "serve-config.yaml"
