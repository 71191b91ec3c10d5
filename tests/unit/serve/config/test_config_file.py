"""The checker of whole configuration files: Serve swallows misspelt keys, this one does not."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.config import PipelineConfig
from pipeline.errors import ConfigError
from pipeline.vocoder.vocoder import CALL_TIMEOUT_S
from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import PROJECT, AppConfig, read_app_config
from serve.config.config_file import check_file, find_mistakes
from serve.config.contradictions import PAIRS, Pair
from serve.config.messages import FORMER
from serve.config.policies import DegradeConfig
from tests.support.effort import examples
from tests.support.model_versions import V1, V2

OTHERS = {"voices.yaml", "box.yaml", "edge.yaml"}  # no configuration, and two without deployments
CONFIGS = sorted(path for path in (PROJECT / "configs").glob("*.yaml") if path.name not in OTHERS)
DEV = (PROJECT / "configs/dev.yaml").read_text()
DOCUMENTS = {path.name: parse_yaml(path.read_text()) for path in CONFIGS}
NOTICED_S = 12.0  # a replica that hangs
FAILURES = 3  # health checks in a row, Serve's own constant
JITTER = 1.1  # on the period, likewise
SET_ON_PURPOSE = {
    "max_ongoing_requests", "max_queued_requests", "backpressure_config", "health_check_period_s", "health_check_timeout_s",
    "graceful_shutdown_timeout_s", "ray_actor_options",
}  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_files_are_right(path: Path):
    file = check_file(path)
    assert file.app.source == f"configs/{path.name}"
    (application,) = file.document["applications"]
    deployments = {deployment["name"]: deployment for deployment in application["deployments"]}
    assert deployments.keys() == set(file.app.deployments)
    for name, deployment in deployments.items():
        assert deployment.keys() >= SET_ON_PURPOSE, name
        assert deployment["max_queued_requests"] > 0
        assert ("num_replicas" in deployment) != ("autoscaling_config" in deployment)
        # A check begins a period after the one before, or at once when that one ran into its timeout.
        period_s, timeout_s = deployment["health_check_period_s"], deployment["health_check_timeout_s"]
        assert JITTER * period_s + FAILURES * max(timeout_s, JITTER * period_s) <= NOTICED_S, name
    for limit_s in (file.app.pipeline.engine.round_timeout_s, CALL_TIMEOUT_S):
        assert limit_s + FAILURES * JITTER * 1.0 <= NOTICED_S
    # What an engine refuses has been read, normalised and sent there: that costs many refusals of the ingress.
    most = {
        name: deployment.get("autoscaling_config", {}).get("max_replicas") or deployment["num_replicas"]
        for name, deployment in deployments.items()
    }
    engine = application["args"]["pipeline"]["engine"]
    room = most["AcousticModel"] * (engine["slots"] + engine["max_waiting"])
    assert most["Ingress"] * application["args"]["limits"]["max_in_flight"] <= room
    if path.name == "gpu.yaml":
        shares = [deployment["ray_actor_options"].get("num_gpus", 0) for deployment in deployments.values()]
        assert sum(shares) == pytest.approx(1.0)


@pytest.mark.slow
def test_code_that_is_not_the_one_the_file_names_is_refused(tmp_path: Path):
    """As when Ray was started in another release's folder, which comes first on its workers' path."""

    def naming(folder: object) -> Path:
        path = tmp_path / "dev.yaml"
        text = DEV.replace("source: configs/dev.yaml", f"source: {path}")
        path.write_text(text.replace("    args:", f"    runtime_env: {{env_vars: {{PYTHONPATH: {folder}}}}}\n    args:", 1))
        return path

    check_file(naming(PROJECT)).check_code()
    check_file(naming(f"/opt/other:{PROJECT}")).check_code()
    with pytest.raises(ConfigError, match=r"runtime_env names the code in /opt/other, and .* was imported"):
        check_file(naming("/opt/other")).check_code()


# Keys.


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


# Values.


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((text, None) for text in ("", "[]", "a: [", "applications: []", "applications: {}", "applications: [1]")),
        ("!!python/object:os.system x", None),
        (
            re.sub(r"( +)checkpoint: demo\n", r"\1checkpoint: demo\n\1checkpoint: full-random\n", DEV),
            "checkpoint appears twice",
        ),
        (DEV, "names another file"),  # a copy
        (None, r"x\.yaml: cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path, text: str | None, words: str | None):
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        check_file(path)


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
            "grpc_servicer_functions": ["serve.protocols.riva.protocol:add_RivaSpeechSynthesisServicer_to_server"],
        }
    document["applications"][0]["args"]["wyoming"] = {"port": wyoming}
    assert sum("is the port of" in mistake for mistake in find_mistakes(document)) == twice


OPEN_WYOMING = {"port": 10200, "host": "0.0.0.0"}


@pytest.mark.parametrize(
    ("host", "args", "key"),
    [
        ("0.0.0.0", {}, "keys.open"),
        ("0.0.0.0", {"keys": {"open": True}}, ""),
        ("0.0.0.0", {"keys": {"open": False}}, ""),
        ("127.0.0.1", {"wyoming": {"port": 10200}}, ""),
        ("127.0.0.1", {"wyoming": {"host": "0.0.0.0"}}, ""),
        ("127.0.0.1", {"wyoming": OPEN_WYOMING}, "wyoming.key"),
        ("127.0.0.1", {"wyoming": OPEN_WYOMING, "keys": {"open": False}}, "wyoming.key"),
        ("127.0.0.1", {"wyoming": OPEN_WYOMING, "keys": {"open": True}}, ""),
        ("127.0.0.1", {"wyoming": OPEN_WYOMING | {"key": "3kh7hhhnmt"}}, ""),
    ],
)
def test_what_other_machines_reach_says_who_may_use_it(host: str, args: dict[str, Any], key: str):
    application = {"name": "x", "route_prefix": "/", "import_path": "serve.app:build_app", "args": args}
    most = {"Ingress": 400, "AcousticModel": 1000, "Vocoder": 64}
    application["deployments"] = [{"name": name, "max_ongoing_requests": number} for name, number in most.items()]
    mistakes = find_mistakes({"http_options": {"host": host}, "applications": [application]})
    assert [key in mistake for mistake in mistakes] == ([True] if key else [])


@pytest.mark.parametrize(
    ("section", "placement", "part", "whole"),
    [("vocoder", "with_acoustic", "Vocoder", "AcousticModel"), ("text", "ingress", "TextNormalizer", "Ingress")],
)
def test_a_stage_in_another_ones_process_has_no_deployment(section: str, placement: str, part: str, whole: str):
    document = copy.deepcopy(DOCUMENTS["k8s-dev.yaml"])
    args = document["applications"][0]["args"]
    (args if section == "text" else args["pipeline"]).setdefault(section, {})["placement"] = placement
    (mistake,) = find_mistakes(document)
    assert f"{part} is a part of {whole} here" in mistake
    assert "set placement to separate" in mistake
    deployments = document["applications"][0]["deployments"]
    deployments.remove(next(deployment for deployment in deployments if deployment["name"] == part))
    assert find_mistakes(document) == []


def test_every_version_has_deployments_of_its_own_or_shares_a_vocoder():
    config = read_app_config({"models": {V1: {}, V2: {"engine": {"slots": 4}, "vocoder_of": V1}}})
    assert config.deployments == (
        "Ingress", "TextNormalizer", f"AcousticModel-{V1}", f"Vocoder-{V1}", f"AcousticModel-{V2}",
    )  # fmt: skip
    assert [version.pipeline.engine.slots for version in config.versions] == [8, 4]
    assert read_app_config({}).deployments == ("Ingress", "TextNormalizer", "AcousticModel", "Vocoder")


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ({V2: {"engine": {"slotz": 4}}}, rf"args.models.{V2}.engine.slotz: unknown key; did you mean slots\?"),
        ({V2: {"vocoder_of": V1}}, "must be another version"),
        ({V2: {"vocoder_of": V2}}, "must be another version"),
        ({V1: {}, V2: {"vocoder_of": V1, "vocoder": {}}}, "remove one of the two"),
        ({"v2": {}}, "pattern"),
    ],
)
def test_wrong_models_are_named(models, says):
    with pytest.raises(ConfigError, match=says):
        read_app_config({"models": models})


def test_weights_of_unknown_versions_are_a_mistake_of_the_file():
    def document(user_config: object) -> dict:
        names = ["TextNormalizer", f"AcousticModel-{V1}", f"Vocoder-{V1}"]
        deployments = [{"name": name, "max_ongoing_requests": 1000} for name in names]
        ingress = {"name": "Ingress", "max_ongoing_requests": 1000, "user_config": user_config}
        application = {
            "import_path": "serve.app:build_app",
            "args": {"models": {V1: {}}},
            "deployments": [*deployments, ingress],
        }
        return {"http_options": {"host": "127.0.0.1"}, "applications": [application]}

    assert not find_mistakes(document({"weights": {V1: 1}}))
    assert "chattts@v2 is not one of models: chattts@v1" in find_mistakes(document({"weights": {V2: 1}}))[0]
    assert "did you mean weights?" in find_mistakes(document({"weight": {V1: 1}}))[0]


def number(path: str) -> tuple[Any, Any]:
    """Default of a setting, and the constraint on it."""
    model: Any = AppConfig
    *sections, key = path.split(".")
    for section in sections:
        model = model.model_fields[section].annotation
    field = model.model_fields[key]
    of_the_number = [constraint for part in get_args(field.annotation) for constraint in getattr(part, "__metadata__", ())]
    of_the_number = [constraint for part in of_the_number for constraint in part.metadata]
    bounds = {
        name: value
        for constraint in (*field.metadata, *of_the_number)
        for name in ("ge", "gt", "le")
        if (value := getattr(constraint, name, None)) is not None
    }
    return field.default, bounds


def args(**numbers: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for path, value in numbers.items():
        *sections, key = path.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return values


def complaint(pair: Pair, written: dict[str, Any]) -> bool:
    """Whether the pair is what is wrong."""
    try:
        read_app_config(written)
    except ConfigError as error:
        return re.search(rf"{pair.lesser} .*must not be above {pair.greater} .*: {pair.otherwise}", str(error)) is not None
    return False


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.lesser}-{pair.greater}")
def test_a_pair_is_refused_the_wrong_way_round_and_only_so(pair: Pair):
    (default, lesser), (other, greater) = number(pair.lesser), number(pair.greater)
    assert default * pair.times <= other * pair.unit
    least = greater["ge"] if "ge" in greater else greater["gt"] + 0.001
    wrong = args(**{pair.lesser: lesser.get("le", 10_000), pair.greater: least})
    assert complaint(pair, wrong)
    if "pipeline" in wrong:  # in one of several versions
        own = wrong.pop("pipeline")
        assert complaint(pair, {**wrong, "models": {"other@1": {}, "own@1": own}})
    equal = args(**{pair.lesser: default, pair.greater: -(-default * pair.times // pair.unit)})
    assert not complaint(pair, equal)


def test_a_limit_that_nobody_wrote_contradicts_no_lower_one():
    assert PipelineConfig() == AppConfig().pipeline
    read_app_config({"limits": {"total_timeout_s": 10}})
    with pytest.raises(ConfigError, match="chunk_timeout_s 30"):
        read_app_config({"limits": {"total_timeout_s": 10, "chunk_timeout_s": 30}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": ["bulk", "refine"]},
        {"steps": ["refine", "refine"]},
        {"steps": ["music"]},
    ],
)
def test_a_ladder_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        DegradeConfig.model_validate(wrong)


def test_a_lighter_version_must_exist():
    with pytest.raises(ConfigError, match="must be one of models"):
        read_app_config({"degrade": {"steps": ["version"], "version": "small@v1"}, "models": {"chattts@v1": {}}})


def test_a_configuration_with_a_misspelt_kwarg_is_refused_with_its_path():
    text = (PROJECT / "configs/two-gpu.yaml").read_text()
    assert find_mistakes(parse_yaml(text)) == []
    (mistake,) = find_mistakes(parse_yaml(text.replace("{utilisation: 0.75, wait_s: 1}", "{utilization: 0.75}")))
    assert mistake.startswith("applications[0].deployments[2].autoscaling_config.policy.policy_kwargs.utilization: unknown key")
    assert "did you mean utilisation?" in mistake
    (mistake,) = find_mistakes(parse_yaml(text.replace("{utilisation: 0.75, wait_s: 1}", "{utilisation: 75}")))
    assert "policy_kwargs.utilisation: Input should be less than or equal to 1; found 75" in mistake
