"""Kubernetes config: embeds configs/*.yaml into the Kubernetes overlays, and writes the environment of Ray's pods.

In:    the configuration each overlay deploys; the table of serve/commands/launch/ray_environment.py
Out:   k8s/overlays/*/serve-config.yaml, the same text as a patch of the RayService; listeners.yaml and
       listeners-policy.yaml, which open the ports of gRPC and Wyoming where the configuration has them, and the way to servers
       outside the cluster that it names; k8s/base/ray-env.yaml
Never: a value of its own
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from pipeline.yaml_loader import parse_yaml
from serve.commands.launch.ray_environment import Place, variables
from serve.config import edge

ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = {"dev": "configs/k8s-dev.yaml", "prod": "configs/k8s-prod.yaml"}

WORKER_GROUPS = {"dev": 1, "prod": 2}
PORTS = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443} | edge.PORTS
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


def outside_ports(args: Mapping[str, Any]) -> list[int]:
    """Returns the ports of servers that the args name by an address outside the namespace: Redis, collectors, brokers."""
    ports = set()
    for value in _strings(args):
        url = urlsplit(value)
        if url.scheme in PORTS and url.hostname and "." in url.hostname and not url.hostname.startswith("127."):
            ports.add(url.port or PORTS[url.scheme])
    return sorted(ports)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


def egress_patch(ports: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the JSON patch of the NetworkPolicy that lets pods reach these ports anywhere: no policy can name a host."""
    rule = {
        "to": [{"ipBlock": {"cidr": cidr}} for cidr in ("0.0.0.0/0", "::/0")],
        "ports": [{"protocol": "TCP", "port": port} for port in ports],
    }
    return [_add("/spec/egress/-", rule)] if ports else []


def _add(path: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def files() -> dict[Path, str]:
    """Returns path -> text of every generated file."""
    texts = {ROOT / "k8s/base/ray-env.yaml": ENVIRONMENT_HEAD + "".join(environment_lines())}
    for overlay, config in OVERLAYS.items():
        texts[patch_path(overlay)] = patch_of(config)
        document = parse_yaml((ROOT / config).read_text(encoding="utf-8"))
        ports, beyond = listeners_of(document), egress_patch(outside_ports(document["applications"][0]["args"]))
        head = f"# Written by `python -m scripts.generate`: the ports of gRPC and Wyoming in {config}, {ports or 'none'}.\n"
        service, policy = listener_patches(ports, WORKER_GROUPS[overlay])
        for name, patch in (("listeners", service), ("listeners-policy", policy + beyond)):
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
