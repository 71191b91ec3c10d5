"""The renderer of overlays: kubectl's own result for a small one, and a refusal of everything it does not know."""

from pathlib import Path

import pytest
import yaml

from scripts.generate.kustomize import Manifest, change, render

DATA = Path(__file__).resolve().parents[2] / "data/kustomize"


def sorted_documents(documents: list[Manifest]) -> list[Manifest]:
    return sorted(documents, key=lambda document: (document["kind"], document["metadata"]["name"]))


def test_an_overlay_is_rendered_as_kubectl_renders_it():
    expected = list(yaml.safe_load_all((DATA / "rendered.yaml").read_text()))
    assert sorted_documents(render(DATA / "overlay")) == sorted_documents(expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("namePrefix: my-", "namePrefix"),
        ("labels: [{pairs: {a: b}, includeSelectors: true}]", "labels"),
        ("images: [{name: app, digest: sha256}]", "images"),
        ("patches: [{patch: '[]', target: {labelSelector: a=b}}]", "labelSelector"),
        ("patches: [{patch: '[]', target: {kind: ConfigMap, name: absent}}]", "no ConfigMap absent"),
        ("patches: [{patch: '{kind: ConfigMap, metadata: {name: settings}}'}]", "merging into ConfigMap"),
    ],
)
def test_what_it_does_not_know_it_refuses(line, message, tmp_path: Path):
    (tmp_path / "settings.yaml").write_text("{kind: ConfigMap, metadata: {name: settings}}")
    (tmp_path / "kustomization.yaml").write_text(f"resources: [settings.yaml]\n{line}\n")
    with pytest.raises(ValueError, match=message):
        render(tmp_path)


@pytest.mark.parametrize(("op", "path"), [("remove", "/a"), ("replace", "/b"), ("test", "/a")])
def test_an_operation_it_does_not_know_or_that_finds_nothing_is_refused(op, path):
    with pytest.raises(ValueError, match=path):
        change({"a": 1}, op, path, 2)
