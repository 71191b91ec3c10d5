"""Compatibility: writes what a minor release promises. `python -m scripts.generate.compatibility`, once for each minor release

In:    the API, the configuration models, the metrics, PYTHON
Out:   docs/compatibility.json
"""

import argparse
import importlib
import json
import sys
import tomllib
from pathlib import Path

from starlette.routing import Route, WebSocketRoute

from serve.commands.operate.config_reference import sections
from serve.observability.metrics import definitions
from serve.protocols.api import ROUTERS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs/compatibility.json"
PYTHON = (
    "serve.app:build_app",
    "serve.protocols.proxy_middleware:middlewares",
    "serve.resilience.autoscaling:StepBacklogPolicy",
)
"""What configurations and the environment name."""


def surface() -> dict[str, list[str]]:
    """Returns the present routes, configuration keys, metrics and Python names, each sorted."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, Route | WebSocketRoute)]
    metrics = {metric.name for metric in vars(definitions).values() if isinstance(metric, definitions.Metric)}
    return {
        "routes": sorted({f"{method} {route.path}" for route in routes for method in getattr(route, "methods", ["WS"])}),
        "keys": sorted(f"{section.path}.{row.key}" for section in sections() for row in section.rows),
        "metrics": sorted(metrics),
        "python": [name for name in PYTHON if _exists(name)],
    }


def release() -> str:
    """Returns the minor release of this checkout, such as 0.3."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version.rpartition(".")[0]


def main() -> int:
    """Writes the file."""
    argparse.ArgumentParser(description="Writes docs/compatibility.json.").parse_args()
    FILE.write_text(json.dumps({"release": release(), **surface()}, indent=1) + "\n", encoding="utf-8")
    return 0


def _exists(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return hasattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    sys.exit(main())
