"""The page about security: what it says of configurations, policies and routes is what the files say."""

import re
from fnmatch import fnmatchcase

import pytest
import yaml

from pipeline.yaml_loader import parse_yaml
from serve.config.app_config import PROJECT
from serve.http.api import ROUTERS
from tests.support.pages import table

PAGE = "docs/security.md"
KEYLESS = {None: "programs of this machine", True: "whom the NetworkPolicy lets through", False: "nobody"}
CLIENTS, OPERATOR = 'namespaces with the label `chattts/client: "true"`', "KubeRay's operator"


def test_every_configuration_says_where_it_listens_and_to_whom():
    rows = {name.strip("`"): (listens, without) for name, listens, without in table(PAGE, "Who reaches which configuration")}
    files = {f"configs/{path.name}": path for path in (PROJECT / "configs").glob("*.yaml") if path.name != "voices.yaml"}
    assert rows.keys() == files.keys()
    for name, path in files.items():
        document = parse_yaml(path.read_text())
        keys = document["applications"][0]["args"].get("keys", {})
        listens, without = rows[name]
        assert listens == document["http_options"]["host"], name
        assert without.startswith(KEYLESS[keys.get("open")]), name


def test_the_network_policy_opens_the_ports_of_the_page_and_no_other():
    page = (PROJECT / PAGE).read_text()
    rows = dict(re.findall(r"^\| (.+) \| ([\d, ]+|all) \|$", page, re.MULTILINE))
    policy = yaml.safe_load((PROJECT / "k8s/base/networkpolicy.yaml").read_text())
    opened = [[str(port["port"]) for port in rule.get("ports", [])] or ["all"] for rule in policy["spec"]["ingress"]]
    assert sorted(map(sorted, opened)) == sorted(sorted(ports.split(", ")) for ports in rows.values())
    assert {CLIENTS, OPERATOR} <= rows.keys()


def patterns() -> list[str]:
    return [pattern for _, routes in table(PAGE, "Routes") for pattern in re.findall(r"`([^`]+)`", routes)]


@pytest.mark.parametrize("route", [route for router in ROUTERS for route in router.routes], ids=lambda route: route.path)
def test_every_route_stands_in_one_row(route):
    for method in getattr(route, "methods", {"WS"}):
        fits = [one for one in patterns() if all(map(fnmatchcase, (method, route.path), one.split()))]
        assert len(fits) == 1, (method, fits)


def test_no_row_speaks_of_a_route_that_is_gone():
    known = [
        (method, route.path) for router in ROUTERS for route in router.routes for method in getattr(route, "methods", {"WS"})
    ]
    known += [("GET", "/openapi.json")]
    for one in patterns():
        assert any(all(map(fnmatchcase, route, one.split())) for route in known), one
