"""The pages name what there is: files, links, tests, keys, metrics, routes, fields, errors, failures and who may do what."""

import ast
import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from pipeline.config import PipelineConfig
from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import AppConfig
from serve.config.model_versions import RoutesConfig
from serve.config.protocols import WyomingConfig
from serve.protocols.api import ROUTERS
from serve.protocols.deepgram.protocol import NAMES as DEEPGRAM_ERRORS
from serve.protocols.deepgram.session import DeepgramMessage
from serve.protocols.deepgram.translation import CONTAINERS, SpeakQuery
from serve.protocols.elevenlabs import account_routes as elevenlabs_account
from serve.protocols.elevenlabs import dialogue_routes as elevenlabs_dialogue
from serve.protocols.elevenlabs import routes as elevenlabs_speech
from serve.protocols.elevenlabs import voice_routes as elevenlabs_voices
from serve.protocols.elevenlabs.dialogue import DialogueBody, Turn
from serve.protocols.elevenlabs.frames import DialogueFrame, Frame, Line
from serve.protocols.elevenlabs.protocol import NAMES as ELEVENLABS_ERRORS
from serve.protocols.elevenlabs.translation import HttpQuery, TextSocketQuery, TextToSpeechBody
from serve.protocols.elevenlabs.voice_routes import Labels
from serve.protocols.riva import protocol
from serve.protocols.riva.protocol import SynthesizeSpeechRequest
from serve.protocols.riva.translation import STATUSES, Configuration
from serve.protocols.wyoming.messages import SynthesizeStartData, WyomingVoice
from tests.support.pages import PAGES, ROOT, section, table
from tests.support.recovery import FILE

TEXT = "\n".join(PAGES.values())
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "serve").rglob("*.py")))
TESTS = set(re.findall(r"def (test_\w+)\(", "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))))

# What the pages name of the tree.

PROSE = {page: re.sub(r"`[^`\n]+`", "", text) for page, text in PAGES.items()}  # a link in code is an example
LINKS = [(page, link) for page, text in PROSE.items() for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
PATHS = set(re.findall(r"`((?:pipeline|serve|configs|scripts|tests|k8s|docs)/[\w./-]+?)`", TEXT))
TARGETS = set(re.findall(r"(?:`|^    )make ([a-z-]+)", TEXT, re.MULTILINE))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    assert LINKS
    for page, link in LINKS:
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), (page, link)
        assert not anchor or anchor in anchors(target.read_text()), (page, link)


def test_named_files_tests_and_targets_exist():
    named, makefile = set(re.findall(r"`(test_\w+)`", TEXT)), (ROOT / "Makefile").read_text()
    assert PATHS
    assert named
    assert TARGETS
    assert {path for path in PATHS if not (ROOT / path).exists()} == set()
    assert named - TESTS == set()
    assert TARGETS - set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) == set()
    assert "`make test`" in PAGES["README.md"]
    assert (ROOT / ".ci/run").read_text().rstrip().endswith("make test")


def test_the_pages_stay_short():
    assert len(PAGES["README.md"].splitlines()) <= 160
    assert sum(len(text.split()) for page, text in PAGES.items() if page.startswith("docs/")) <= 45_000


def test_every_configuration_and_every_folder_says_what_it_is_for():
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        assert f"configs/{path.name}" in PAGES["docs/configuration.md"], f"{path.name} is not described"
    for top in ("serve", "pipeline"):
        for source in sorted((ROOT / top).rglob("__init__.py")):
            assert ast.get_docstring(ast.parse(source.read_text())), source


# What the pages name of the service.

ROOTS = (AppConfig, PipelineConfig, RoutesConfig)
METRICS = set(re.findall(r"\"(chattts_[a-z_]+)\"", SOURCES))
SPANS = set(re.findall(r"[a-z]+\.[a-z_]+", (ROOT / "serve/observability/tracing.py").read_text().partition("Owns:")[0]))
FILES = re.compile(r"\.(py|yaml|md|cpp|json|sqlite|pt)$")


def named_keys(text: str) -> set[str]:
    """The dotted configuration keys in backticks. Names of events and spans, which stand in the code as they are, are none."""
    sections = {name for root in ROOTS for name in root.model_fields}
    dotted = set(re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?:: [^`]*)?`", text))
    keys = {key for key in dotted if key.partition(".")[0] in sections and not FILES.search(key)}
    return {key for key in keys - SPANS if f'"{key}"' not in SOURCES}


def is_key(path: str) -> bool:
    """True if one of the root models has this key."""

    def within(annotation: Any, parts: list[str]) -> bool:
        kinds = (annotation, *get_args(annotation))
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        return not parts or any(
            parts[0] in model.model_fields and within(model.model_fields[parts[0]].annotation, parts[1:]) for model in models
        )

    return any(within(root, path.split(".")) for root in ROOTS)


def test_a_key_that_does_not_exist_is_found():
    assert named_keys("`engine.slots` and `limits.max_in_fright`, `engine.py`") == {"engine.slots", "limits.max_in_fright"}
    assert is_key("engine.slots")
    assert not is_key("limits.max_in_fright")


def is_route(path: str) -> bool:
    route = re.sub(r"/(both|cities)(?=/|$)", r"/\\{\\w+\\}", path.rstrip("/"))
    return re.search(rf'"{route}[/"]', SOURCES) is not None


NAMED: dict[str, tuple[Iterable[str], Any]] = {
    "key": (named_keys(TEXT), is_key),
    "metric": (
        re.findall(r"\b(?:ray_)?(chattts_[a-z_]+|[a-z]+_total)\b", TEXT),
        lambda name: METRICS & {name, f"chattts_{name}"},
    ),
    "header": (set(re.findall(r"`(X-[A-Za-z-]+)", TEXT)) - {"X-Forwarded-For"}, lambda name: name.lower() in SOURCES.lower()),
    "route": (re.findall(r"(?<!\d)(/(?:v1|admin)/(?:single-use-token|pronunciation-dictionaries|[a-z/]+))", TEXT), is_route),
    "error": (
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| \d{3} (\| .*? \|)", section("docs/api.md", "Errors"), re.MULTILINE))),
        lambda code: f'"{code}"' in SOURCES,
    ),
}


@pytest.mark.parametrize("kind", NAMED)
def test_named_things_of_the_service_exist(kind: str):
    names, exists = NAMED[kind]
    assert names
    assert {name for name in names if not exists(name)} == set()


# What the page of a protocol must name.


def fields(*models: type[BaseModel]) -> list[str]:
    return [name for model in models for name in model.model_fields]


def errors(names: dict[str, tuple[int, str]]) -> list[str]:
    return [rf"`{code}`.*\| `{name}` \| {status} \|" for code, (status, name) in names.items()]


def forms(form: str, names: Iterable[str]) -> list[str]:
    """The regular expressions of how a page writes these names."""
    return [form % re.escape(name) for name in names]


ELEVENLABS_ROUTERS = (elevenlabs_speech, elevenlabs_dialogue, elevenlabs_voices, elevenlabs_account)
ELEVENLABS_PATHS = {route.path.replace("{name}", "<voice>") for module in ELEVENLABS_ROUTERS for route in module.router.routes}
ELEVENLABS_MODELS = (
    *(TextToSpeechBody, HttpQuery, TextSocketQuery, Frame, DialogueFrame, Line),
    *(DialogueBody, Turn, Labels),
)
WYOMING_EVENTS = ("describe", "ping", "select-program", "synthesize", "synthesize-start", "synthesize-chunk", "synthesize-stop")
EXPLAINED: list[tuple[str, str | None, list[str]]] = [
    ("wyoming", "Events", forms("`%s`", set(fields(SynthesizeStartData)) - {"voice"})),
    ("wyoming", "Events", forms(r"`voice\.%s`", fields(WyomingVoice))),
    ("wyoming", "Events", forms(r"\| `%s` \|", WYOMING_EVENTS)),
    ("wyoming", None, forms(r"`wyoming\.%s`", set(fields(WyomingConfig)) - {"port"})),
    ("elevenlabs", "Routes", forms("%s`", ELEVENLABS_PATHS)),
    ("elevenlabs", None, forms(r"\b%s\b", fields(*ELEVENLABS_MODELS))),
    ("elevenlabs", "Errors", errors(ELEVENLABS_ERRORS)),
    ("deepgram", "Query", forms("`%s`", [*fields(SpeakQuery), *CONTAINERS])),
    ("deepgram", "WebSocket", forms(r'\| `\{"type": "%s"', get_args(DeepgramMessage.model_fields["type"].annotation))),
    ("deepgram", "Errors", errors(DEEPGRAM_ERRORS)),
    ("grpc", "Fields", forms("`%s`", [*SynthesizeSpeechRequest.DESCRIPTOR.fields_by_name, *fields(Configuration)])),
]
"""page, section (None: the whole page), what must be in it"""


@pytest.mark.parametrize(("page", "title", "expected"), EXPLAINED)
def test_the_page_of_a_protocol_explains_every_name(page: str, title: str | None, expected: list[str]):
    text = PAGES[f"docs/{page}.md"] if title is None else section(f"docs/{page}.md", title)
    assert expected
    assert [form for form in expected if not re.search(form, text)] == []


def test_the_page_about_grpc_has_every_status_and_the_function_of_the_configuration():
    rows = re.findall(r"^\| ([0-9, ]+) \| `(\w+)` \|$", section("docs/grpc.md", "Errors"), re.MULTILINE)
    explained = {int(status): code for statuses, code in rows for status in statuses.split(", ")}
    assert explained == {status: code.name for status, code in STATUSES.items()} | {500: "INTERNAL"}
    (name,) = re.findall(r"grpc_servicer_functions: \[serve\.protocols\.riva\.protocol:(\w+)\]", PAGES["docs/grpc.md"])
    assert callable(getattr(protocol, name))


# docs/reliability.md: the table of failures.

FAILURES = table("docs/reliability.md", "Failures, one by one")
FAILURE_IDS = [*(f"F-{number:02}" for number in range(1, 36)), *(f"N-{number}" for number in range(1, 10))]


def test_every_failure_has_its_row_its_test_and_the_measured_seconds():
    assert sorted({row[0] for row in FAILURES}) == FAILURE_IDS
    assert [row[0] for row in FAILURES] == sorted(row[0] for row in FAILURES)
    assert [row[0] for row in FAILURES if row[-1].strip("` |") not in TESTS] == []
    assert {row[0]: float(row[4]) for row in FAILURES if row[4] != "–"} == json.loads(FILE.read_text())


# docs/security.md.

SECURITY = "docs/security.md"
KEYLESS = {None: "programs of this machine", True: "whom the NetworkPolicy lets through", False: "nobody"}
CLIENTS, OPERATOR = 'namespaces with the label `chattts/client: "true"`', "KubeRay's operator"
PATTERNS = [pattern for _, routes in table(SECURITY, "Routes") for pattern in re.findall(r"`([^`]+)`", routes)]
ROUTES = [(method, route.path) for router in ROUTERS for route in router.routes for method in getattr(route, "methods", {"WS"})]


def test_every_configuration_says_where_it_listens_and_to_whom():
    rows = {name.strip("`"): rest for name, *rest in table(SECURITY, "Who reaches which configuration")}
    files = {f"configs/{path.name}": path for path in (ROOT / "configs").glob("*.yaml") if path.name != "voices.yaml"}
    assert rows.keys() == files.keys()
    for name, path in files.items():
        document = parse_yaml(path.read_text())
        keys = document["applications"][0]["args"].get("keys", {})
        listens, without = rows[name]
        assert listens == document["http_options"]["host"], name
        assert without.startswith(KEYLESS[keys.get("open")]), name


def test_the_network_policy_opens_the_ports_of_the_page_and_no_other():
    rows = dict(re.findall(r"^\| (.+) \| ([\d, ]+|all) \|$", PAGES[SECURITY], re.MULTILINE))
    policy = yaml.safe_load((ROOT / "k8s/base/networkpolicy.yaml").read_text())
    opened = [[str(port["port"]) for port in rule.get("ports", [])] or ["all"] for rule in policy["spec"]["ingress"]]
    assert sorted(map(sorted, opened)) == sorted(sorted(ports.split(", ")) for ports in rows.values())
    assert {CLIENTS, OPERATOR} <= rows.keys()


def test_every_route_stands_in_one_row_and_every_row_is_of_routes():
    rows = {route: [row for row in PATTERNS if all(map(fnmatchcase, route, row.split()))] for route in ROUTES}
    assert {route: matches for route, matches in rows.items() if len(matches) != 1} == {}
    assert set(PATTERNS) - {row for matches in rows.values() for row in matches} <= {"GET /openapi.json"}
