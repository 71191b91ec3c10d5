"""Kubernetes config: embeds configs/*.yaml into the Kubernetes overlays, and writes the environment of Ray's pods.

In:    the configuration each overlay deploys; the table of serve/commands/launch/ray_environment.py
Out:   k8s/overlays/*/serve-config.yaml, the same text as a patch of the RayService; listeners.yaml and
       listeners-policy.yaml, which open the ports of gRPC and Wyoming where the configuration has them; k8s/base/ray-env.yaml
Never: a value of its own
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.yaml_loader import parse_yaml
from serve.commands.launch.ray_environment import Place, variables

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = {"dev": "configs/k8s-dev.yaml", "prod": "configs/k8s-prod.yaml"}

WORKER_GROUPS = {"dev": 1, "prod": 2}
CLIENTS = 1  # the rule of the base's NetworkPolicy for clients
CHANGES_NOTHING = {"op": "replace", "path": "/metadata/name", "value": "chattts"}

HEAD = """\
# Written by `python -m scripts.generate` from {config}: edit that file.
apiVersion: ray.io/v1
kind: RayService
metadata:
  name: chattts
spec:
  serveConfigV2: |
"""
ENVIRONMENT_HEAD = """\
# Written by `python -m scripts.generate` from serve/commands/launch/ray_environment.py: the environment of every Ray
# process, on the head and on all workers alike.
apiVersion: v1
kind: ConfigMap
metadata:
  name: chattts-ray-env
data:
"""


def patch_of(config: str) -> str:
    """Returns the patch that carries one configuration, comments included."""
    lines = (ROOT / config).read_text(encoding="utf-8").splitlines()
    return HEAD.format(config=config) + "".join(f"    {line}\n" if line else "\n" for line in lines)


def listeners_of(document: Mapping[str, Any]) -> dict[str, int]:
    """Returns name -> port of the listeners that a configuration opens besides HTTP."""
    grpc = document.get("grpc_options") or {}
    wyoming = document["applications"][0]["args"].get("wyoming") or {}
    ports = {"grpc": grpc.get("port", 9000) if grpc.get("grpc_servicer_functions") else None, "wyoming": wyoming.get("port")}
    return {name: port for name, port in ports.items() if port}


def listener_patches(listeners: Mapping[str, int], worker_groups: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the JSON patches of the RayService and of the NetworkPolicy that open these ports to clients."""
    pods = [f"/spec/rayClusterConfig/workerGroupSpecs/{group}/template/spec/containers/0" for group in range(worker_groups)]
    service, policy = [], []
    for name, port in listeners.items():
        service.append(_add("/spec/serveService/spec/ports/-", {"name": name, "port": port, "targetPort": port}))
        service += [_add(f"{pod}/ports/-", {"name": name, "containerPort": port}) for pod in pods]
        policy.append(_add(f"/spec/ingress/{CLIENTS}/ports/-", {"protocol": "TCP", "port": port}))
    return service or [CHANGES_NOTHING], policy or [CHANGES_NOTHING]


def _add(path: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def files() -> dict[Path, str]:
    """Returns path -> text of every generated file."""
    texts = {ROOT / "k8s/base/ray-env.yaml": ENVIRONMENT_HEAD + "".join(environment_lines())}
    for overlay, config in OVERLAYS.items():
        texts[patch_path(overlay)] = patch_of(config)
        ports = listeners_of(parse_yaml((ROOT / config).read_text(encoding="utf-8")))
        head = f"# Written by `python -m scripts.generate`: the ports of gRPC and Wyoming in {config}, {ports or 'none'}.\n"
        for name, patch in zip(("listeners", "listeners-policy"), listener_patches(ports, WORKER_GROUPS[overlay]), strict=True):
            texts[patch_path(overlay).with_name(f"{name}.yaml")] = head + yaml.safe_dump(patch, sort_keys=False)
    return texts


def environment_lines() -> Iterator[str]:
    """Yields a line of the map for each variable."""
    for row in variables(Place.PODS):
        value = f'"{row.value}"' if row.value.replace(".", "").isdigit() else row.value
        yield f"  {row.name}: {value}" + f"  # {row.why}" * bool(row.why) + "\n"


def patch_path(overlay: str) -> Path:
    """Returns the path of an overlay's patch."""
    return ROOT / "k8s" / "overlays" / overlay / "serve-config.yaml"
