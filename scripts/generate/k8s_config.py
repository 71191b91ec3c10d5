"""Embed serve config: writes configs/*.yaml into the Kubernetes overlays. `python -m scripts.generate.k8s_config`

In:    the configuration each overlay deploys
Out:   k8s/overlays/*/serve-config.yaml, the same text as a patch of the RayService
Owns:  those files; nobody edits them
Never: a value of its own
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = {"dev": "configs/k8s-dev.yaml", "prod": "configs/k8s-prod.yaml"}

HEAD = """\
# Written by `python -m scripts.generate.k8s_config` from {config}: edit that file.
apiVersion: ray.io/v1
kind: RayService
metadata:
  name: chattts
spec:
  serveConfigV2: |
"""


def patch_of(config: str) -> str:
    """The patch that carries one configuration, its comments included."""
    lines = (ROOT / config).read_text(encoding="utf-8").splitlines()
    return HEAD.format(config=config) + "".join(f"    {line}\n" if line else "\n" for line in lines)


def patch_path(overlay: str) -> Path:
    """Where an overlay keeps it."""
    return ROOT / "k8s" / "overlays" / overlay / "serve-config.yaml"


def main() -> int:
    """Write them all."""
    argparse.ArgumentParser(description="Write the configurations into the Kubernetes overlays.").parse_args()
    for overlay, config in OVERLAYS.items():
        patch_path(overlay).write_text(patch_of(config), encoding="utf-8")
        Console().print(f"{patch_path(overlay).relative_to(ROOT)}  <-  {config}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
