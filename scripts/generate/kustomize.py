"""Kustomize: renders an overlay as `kubectl kustomize` does, as far as the manifests need it. No package list has one.

In:    a folder with a kustomization.yaml
Out:   its documents
Never: a guess: a key, an operation or a target it does not know is a ValueError
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

KEYS = {"apiVersion", "kind", "resources", "namespace", "labels", "patches", "images"}
CUSTOM = {"RayService"}  # merged as RFC 7386 says; Kubernetes' own kinds merge lists by name, which nothing here needs
CLUSTER_WIDE = {"Namespace", "PriorityClass"}


def render(folder: Path) -> list[Manifest]:
    """Every document of an overlay, its bases first where it names them first.

    Raises:
        ValueError: the overlay asks for something that is not implemented here, or patches what is not there.
    """
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(kustomization) - KEYS
    if unknown:
        raise ValueError(f"{folder}: {sorted(unknown)} is not implemented; known are {sorted(KEYS)}")
    documents = [document for name in kustomization["resources"] for document in load(folder / name)]
    for patch in kustomization.get("patches", []):
        apply(patch, documents, folder)
    for document in documents:
        if "namespace" in kustomization and document["kind"] not in CLUSTER_WIDE:
            document["metadata"]["namespace"] = kustomization["namespace"]
        for label in kustomization.get("labels", []):
            add_labels(document, label)
        for image in kustomization.get("images", []):
            rename(document, image)
    return documents


def load(path: Path) -> list[Manifest]:
    """A base's documents, or a file's."""
    return render(path) if path.is_dir() else [unshared(document) for document in yaml.safe_load_all(path.read_text())]


def unshared(content: Any) -> Any:
    """The same, with a copy wherever YAML has an alias, so that a change in one place stays there."""
    return json.loads(json.dumps(content))


def apply(patch: Manifest, documents: list[Manifest], folder: Path) -> None:
    """One entry of `patches`: a list is a JSON patch (RFC 6902) of its target, a document is merged into its namesake."""
    unknown = set(patch) - {"path", "patch", "target"} | set(patch.get("target", {})) - {"kind", "name"}
    if unknown:
        raise ValueError(f"{folder}: a patch with {sorted(unknown)} is not implemented")
    content = unshared(yaml.safe_load(patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()))
    if isinstance(content, list):
        for document in matching(documents, **patch["target"]):
            for operation in content:
                change(document, **unshared(operation))
        return
    if content["kind"] not in CUSTOM:
        raise ValueError(f"{folder}: merging into {content['kind']} is not implemented, only into {sorted(CUSTOM)}")
    for document in matching(documents, content["kind"], content["metadata"]["name"]):
        merge(document, content)


def matching(documents: list[Manifest], kind: str, name: str) -> list[Manifest]:
    """The documents a patch is for; one at least."""
    targets = [document for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    if not targets:
        raise ValueError(f"there is no {kind} {name} to patch")
    return targets


def merge(target: Manifest, patch: Manifest) -> None:
    """RFC 7386: mappings are joined, null removes, everything else is replaced."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


def change(document: Manifest, op: str, path: str, value: Any) -> None:
    """One operation of RFC 6902: add or replace."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    place: Any = document
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    if op == "add" and isinstance(place, list):
        place.insert(len(place) if last == "-" else int(last), value)
    elif op == "add":
        place[last] = value
    elif op == "replace":
        key = int(last) if isinstance(place, list) else last
        if isinstance(place, dict) and key not in place:
            raise ValueError(f"{path}: there is nothing to replace")
        place[key] = value
    else:
        raise ValueError(f"{path}: {op} is not implemented, only add and replace")


def add_labels(document: Manifest, label: Manifest) -> None:
    """One entry of `labels`, on the document itself."""
    if set(label) - {"pairs", "includeSelectors"} or label.get("includeSelectors"):
        raise ValueError(f"labels with {sorted(label)} are not implemented, only pairs without selectors")
    document["metadata"].setdefault("labels", {}).update(label["pairs"])


def rename(document: Manifest, image: Manifest) -> None:
    """One entry of `images`, in every container."""
    if set(image) != {"name", "newName", "newTag"}:
        raise ValueError(f"images with {sorted(image)} are not implemented, only name, newName and newTag")
    for container in containers(document):
        if container["image"].partition(":")[0] == image["name"]:
            container["image"] = f"{image['newName']}:{image['newTag']}"


def containers(node: Any) -> Iterator[Manifest]:
    """Those of a document, wherever its pods are described."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from value if key in ("containers", "initContainers") else containers(value)
    elif isinstance(node, list):
        for item in node:
            yield from containers(item)
