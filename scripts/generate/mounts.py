"""Mounts: whether every folder that a configuration writes to can be written in the overlay that deploys it.

In:    an overlay, rendered; its configuration
Out:   a sentence per pod and folder
Never: a cluster
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.yaml_loader import parse_yaml
from scripts.generate.k8s_config import OVERLAYS
from scripts.generate.kustomize import Manifest, render
from serve.config.app_config import read_app_config
from serve.config.folders import written_folders

ROOT = Path(__file__).resolve().parents[2]
HOME = "CHATTTS_HOME"
MANY = "ReadWriteMany"


def mistakes() -> Iterator[str]:
    """Yields the mistakes of every overlay."""
    for overlay, config in OVERLAYS.items():
        args = parse_yaml((ROOT / config).read_text(encoding="utf-8"))["applications"][0]["args"]
        for mistake in mistakes_of(render(ROOT / "k8s/overlays" / overlay), args):
            yield f"k8s/overlays/{overlay}: {mistake}"


def mistakes_of(documents: list[Manifest], args: Mapping[str, Any]) -> Iterator[str]:
    """Yields what a pod of Ray cannot write, or writes where the others do not look.

    Args:
        documents: a rendered overlay.
        args: `args:` of the configuration it deploys.
    """
    (environment,) = [document["data"] for document in documents if document["kind"] == "ConfigMap"]
    (service,) = [document for document in documents if document["kind"] == "RayService"]
    shared = {
        claim["metadata"]["name"]
        for claim in documents
        if claim["kind"] == "PersistentVolumeClaim" and MANY in claim["spec"]["accessModes"]
    }
    home = Path(environment[HOME])
    folders = {HOME: home, **written_folders(read_app_config(args), home)}
    cluster = service["spec"]["rayClusterConfig"]
    groups = cluster["workerGroupSpecs"]
    has_many = len(groups) > 1 or any(group["maxReplicas"] > 1 for group in groups)
    pods = {"head": cluster["headGroupSpec"]["template"]} | {group["groupName"]: group["template"] for group in groups}
    for name, pod in pods.items():
        for key, folder in folders.items():
            if problem := problem_of(folder, pod["spec"], shared if has_many else None):
                yield f"{name}: {key} is {folder}, {problem}"


def problem_of(folder: Path, pod: Mapping[str, Any], shared: set[str] | None) -> str | None:
    """Returns why the containers of a pod cannot write a folder; None: they can.

    Args:
        shared: the claims that several pods write at once; None: there is one pod, so any volume will do.
    """
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = [
            mount_point
            for mount_point in container["volumeMounts"]
            if PurePosixPath(folder).is_relative_to(mount_point["mountPath"])
        ]
        if not mounts:
            return "and no volume is mounted there"
        mount = max(mounts, key=lambda mount_point: len(mount_point["mountPath"]))
        claim = volumes[mount["name"]].get("persistentVolumeClaim", {})
        if (
            mount.get("readOnly")
            or claim.get("readOnly")
            or not {"persistentVolumeClaim", "emptyDir"} & set(volumes[mount["name"]])
        ):
            return f"on the volume {mount['name']}, which cannot be written"
        if shared is not None and claim.get("claimName") not in shared:
            return f"on the volume {mount['name']}, which is not shared by the pods: it needs a claim with {MANY}"
    return None
