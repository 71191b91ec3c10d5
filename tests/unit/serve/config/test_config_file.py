"""The checker of whole configuration files: Serve swallows misspelt keys, we do not."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.vocoder.vocoder import CALL_TIMEOUT_S
from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import PROJECT
from serve.config.config_file import check_file, find_mistakes
from serve.config.messages import FORMER
from serve.config.model_versions import deployments_of
from tests.support.effort import examples

CONFIGS = sorted((PROJECT / "configs").glob("*.yaml"))
CONFIGS = [path for path in CONFIGS if path.name != "voices.yaml"]
DOCUMENTS = {path.name: parse_yaml(path.read_text()) for path in CONFIGS}


def keys_of(value: object, at: tuple = ()) -> Iterator[tuple]:
    """Paths of every mapping key anywhere in the document, but for the names operators give to Ray's resources."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, key)
            if key != "resources":
                yield from keys_of(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from keys_of(inner, (*at, index))


def renamed(document: dict, path: tuple, key: str) -> dict:
    document = copy.deepcopy(document)
    parent = document
    for part in path[:-1]:
        parent = parent[part]
    parent[key] = parent.pop(path[-1])
    return document


EVERY_KEY = [(name, path) for name, document in DOCUMENTS.items() for path in keys_of(document)]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_files_are_right(path):
    checked = check_file(path)
    assert checked.app.source == f"configs/{path.name}"
    assert {d["name"] for d in checked.document["applications"][0]["deployments"]} == set(deployments_of(checked.app.versions))


PLACES = {
    "compat": "models.a@1.compat",
    "engine": "pipeline.engine",
    "vocoder": "pipeline.vocoder",
    "probe": "user_config.probe",
}


@pytest.mark.parametrize("key", FORMER)
def test_a_former_key_is_refused_with_what_holds_now(key: str):
    document = copy.deepcopy(DOCUMENTS["dev.yaml"])
    (application,) = document["applications"]
    section, _, name = key.rpartition(".")
    path = [*PLACES.get(section, "pipeline" if key == "text" else section).split("."), name]
    at = application["deployments"][0] if path[0] == "user_config" else application["args"]
    for part in filter(None, path[:-1]):
        at = at.setdefault(part, {})
    at[name] = {}
    (mistake,) = find_mistakes(document)
    assert mistake.endswith(f"{key}: no key since 0.3: {FORMER[key]}. Remove it")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_more_requests_are_admitted_than_the_engines_hold(name):
    """What an engine refuses has been read, normalised and sent there: that costs many refusals of the ingress."""
    (application,) = DOCUMENTS[name]["applications"]
    most = {
        deployment["name"]: deployment.get("autoscaling_config", {}).get("max_replicas") or deployment["num_replicas"]
        for deployment in application["deployments"]
    }
    engine = application["args"]["pipeline"]["engine"]
    room = most["AcousticModel"] * (engine["slots"] + engine["max_waiting"])
    assert most["Ingress"] * application["args"]["limits"]["max_in_flight"] <= room


@pytest.mark.slow
def test_code_that_is_not_the_one_the_file_names_is_refused(tmp_path: Path):
    """As when Ray was started in another release's folder, which comes first on its workers' path."""

    def naming(folder: object) -> Path:
        path = tmp_path / "dev.yaml"
        text = (PROJECT / "configs/dev.yaml").read_text().replace("source: configs/dev.yaml", f"source: {path}")
        path.write_text(text.replace("    args:", f"    runtime_env: {{env_vars: {{PYTHONPATH: {folder}}}}}\n    args:", 1))
        return path

    check_file(naming(PROJECT)).check_code()
    check_file(naming(f"/opt/other:{PROJECT}")).check_code()
    with pytest.raises(ConfigError, match=r"runtime_env names the code in /opt/other, and .* was imported"):
        check_file(naming("/opt/other")).check_code()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_deployment_sets_its_limits_on_purpose(path):
    for deployment in check_file(path).document["applications"][0]["deployments"]:
        wanted = {"max_ongoing_requests", "max_queued_requests", "backpressure_config", "health_check_period_s",
                  "health_check_timeout_s", "graceful_shutdown_timeout_s", "ray_actor_options"}  # fmt: skip
        assert wanted <= set(deployment), deployment["name"]
        assert deployment["max_queued_requests"] > 0
        assert ("num_replicas" in deployment) != ("autoscaling_config" in deployment)


def test_shares_of_one_gpu_are_whole():
    checked = check_file(PROJECT / "configs/gpu.yaml")
    shares = [one["ray_actor_options"].get("num_gpus", 0) for one in checked.document["applications"][0]["deployments"]]
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_key_with_one_letter_more_is_refused_and_the_right_one_suggested(name):
    for path in (path for owner, path in EVERY_KEY if owner == name):
        key = path[-1]
        mistakes = find_mistakes(renamed(DOCUMENTS[name], path, f"{key}s"))
        assert any(f"{key}s" in mistake and f"did you mean {key}?" in mistake for mistake in mistakes), (path, mistakes)


@settings(max_examples=examples(300))
@given(st.data())
def test_any_mutation_of_any_key_is_refused_with_its_path(data):
    name, path = data.draw(st.sampled_from(EVERY_KEY))
    key = path[-1]
    position = data.draw(st.integers(0, len(key) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_0"))
    mutated = data.draw(
        st.sampled_from(
            [key[:position] + key[position + 1 :], key[:position] + letter + key[position:], key.upper(), f"{key} "]
        )
    )
    siblings = DOCUMENTS[name]
    for part in path[:-1]:
        siblings = siblings[part]
    if mutated in siblings:
        return
    mistakes = find_mistakes(renamed(DOCUMENTS[name], path, mutated))
    assert mistakes, (name, path, mutated)
    assert any(mutated in mistake for mistake in mistakes), mistakes


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("args", "pipeline", "engine", "slots", "many"), "applications[0].args.pipeline.engine.slots"),
        (("args", "pipeline", "engine", "slots", 0), "found 0"),
        (("args", "limits", "max_in_flight", -1), "applications[0].args.limits.max_in_flight"),
        (("import_path", "serve.app:build"), "must be serve.app:build_app"),
        (("deployments", 0, "max_ongoing_requests", 5), "Ingress.max_ongoing_requests: 5 is below"),
        (
            ("args", "conversations", {"max_sockets": 10_000}),
            "is below limits.max_in_flight + conversations.max_sockets = 10024",
        ),
        (("deployments", 0, "max_queued_requests", 64), "Ingress.max_queued_requests: 64 is below"),
        (("deployments", 2, "max_ongoing_requests", 95), "AcousticModel.max_ongoing_requests: 95 is below"),
        (("deployments", 2, "num_replicas", -1), "num_replicas"),
        (("deployments", 2, "name", "Acoustic"), "did you mean AcousticModel?"),
        (("deployments", 2, "name", "Vocoder"), "Vocoder appears twice"),
        (("deployments", 2, "backpressure_config", "status_code", 418), "backpressure_config"),
    ],
)
def test_wrong_values_are_named(change, expected):
    document = copy.deepcopy(DOCUMENTS["dev.yaml"])
    parent = document["applications"][0]
    for part in change[:-2]:
        parent = parent[part]
    parent[change[-2]] = change[-1]
    assert any(expected in mistake for mistake in find_mistakes(document)), find_mistakes(document)


def test_equal_keys_are_refused(tmp_path: Path):
    text = (PROJECT / "configs/dev.yaml").read_text()
    twice = tmp_path / "twice.yaml"
    twice.write_text(re.sub(r"( +)checkpoint: demo\n", r"\1checkpoint: demo\n\1checkpoint: full-random\n", text))
    with pytest.raises(ConfigError, match="checkpoint appears twice"):
        check_file(twice)


def test_a_copied_file_must_not_name_the_original(tmp_path: Path):
    copied = tmp_path / "copy.yaml"
    copied.write_text((PROJECT / "configs/dev.yaml").read_text())
    with pytest.raises(ConfigError, match="names another file"):
        check_file(copied)


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "applications: []", "applications: {}", "applications: [1]", "!!python/object:os.system x"]
)
def test_nonsense_is_refused_without_a_traceback(tmp_path: Path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        check_file(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        check_file(tmp_path / "none.yaml")


NOTICED_S = 12.0


FAILURES = 3  # health checks in a row, Serve's own constant


JITTER = 1.1  # on the period, likewise


FILES = sorted(path for path in (PROJECT / "configs").glob("*.yaml") if path.name != "voices.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_replica_that_hangs_is_noticed_within_12_seconds(path):
    """A check begins a period after the one before, or at once when that one ran into its timeout."""
    file = check_file(path)
    for deployment in file.document["applications"][0]["deployments"]:
        period_s, timeout_s = deployment["health_check_period_s"], deployment["health_check_timeout_s"]
        assert JITTER * period_s + FAILURES * max(timeout_s, JITTER * period_s) <= NOTICED_S, deployment["name"]
    for limit_s in (file.app.pipeline.engine.round_timeout_s, CALL_TIMEOUT_S):
        assert limit_s + FAILURES * JITTER * 1.0 <= NOTICED_S


@pytest.mark.parametrize(
    ("http", "grpc", "wyoming", "twice"),
    [(8000, None, 8000, 1), (None, None, 8000, 1), (8000, 8000, None, 1), (8000, None, 9000, 0), (8000, 8000, 8000, 2)],
)
def test_two_listeners_have_two_ports(http: int | None, grpc: int | None, wyoming: int | None, twice: int):
    document = copy.deepcopy(DOCUMENTS["dev.yaml"])
    document["http_options"] = {"host": "127.0.0.1", **({} if http is None else {"port": http})}
    if grpc is not None:
        document["grpc_options"] = {
            "port": grpc,
            "grpc_servicer_functions": ["serve.doors.riva.protocol:add_RivaSpeechSynthesisServicer_to_server"],
        }
    document["applications"][0]["args"]["wyoming"] = {"port": wyoming}
    assert sum("is the port of" in mistake for mistake in find_mistakes(document)) == twice


def test_a_service_that_other_machines_reach_must_set_keys_open():
    document = {
        "http_options": {"host": "0.0.0.0"},
        "applications": [
            {"name": "x", "route_prefix": "/", "import_path": "serve.app:build_app", "args": {}, "deployments": []}
        ],
    }
    for name, most in (("Ingress", 400), ("AcousticModel", 1000), ("Vocoder", 64)):
        document["applications"][0]["deployments"].append({"name": name, "max_ongoing_requests": most})
    (mistake,) = find_mistakes(document)
    assert "keys.open" in mistake
    for said in (True, False):
        document["applications"][0]["args"] = {"keys": {"open": said}}
        assert find_mistakes(document) == []


@pytest.mark.parametrize(
    ("args", "is_right"),
    [
        ({"wyoming": {"port": 10200}}, True),
        ({"wyoming": {"host": "0.0.0.0"}}, True),
        ({"wyoming": {"port": 10200, "host": "0.0.0.0"}}, False),
        ({"wyoming": {"port": 10200, "host": "0.0.0.0"}, "keys": {"open": False}}, False),
        ({"wyoming": {"port": 10200, "host": "0.0.0.0"}, "keys": {"open": True}}, True),
        ({"wyoming": {"port": 10200, "host": "0.0.0.0", "key": "3kh7hhhnmt"}}, True),
    ],
)
def test_a_door_without_keys_that_other_machines_reach_must_have_one_of_the_operator(args: dict[str, Any], is_right: bool):
    application = {"name": "x", "route_prefix": "/", "import_path": "serve.app:build_app", "args": args, "deployments": []}
    document: dict[str, Any] = {"http_options": {"host": "127.0.0.1"}, "applications": [application]}
    for name, most in (("Ingress", 400), ("AcousticModel", 1000), ("Vocoder", 64)):
        application["deployments"].append({"name": name, "max_ongoing_requests": most})
    mistakes = find_mistakes(document)
    assert mistakes == [] if is_right else "wyoming.key" in mistakes[0]


def test_a_vocoder_beside_its_engine_has_no_deployment():
    document = copy.deepcopy(DOCUMENTS["dev.yaml"])
    document["applications"][0]["args"]["pipeline"]["vocoder"] = {"placement": "with_acoustic"}
    (mistake,) = find_mistakes(document)
    assert "Vocoder is a part of AcousticModel here" in mistake
    assert "set placement to separate" in mistake
    deployments = document["applications"][0]["deployments"]
    deployments.remove(next(one for one in deployments if one["name"] == "Vocoder"))
    assert find_mistakes(document) == []
