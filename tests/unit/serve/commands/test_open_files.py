"""Open files: HAProxy gets as many connections as the system's limit allows, and who has too few is told what to do."""

import resource
from collections.abc import Callable

import pytest

from serve.commands.launch import open_files
from serve.commands.launch.open_files import CONNECTIONS, MAXCONN, connections, few_connections, files_for, raise_limit

Limit = Callable[[int, int], list[tuple[int, int]]]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets what the system says about its limit; returns what it is asked to set."""

    def set_to(now: int, most: int) -> list[tuple[int, int]]:
        asked: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _: (now, most))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
        return asked

    return set_to


@pytest.mark.parametrize(
    ("now", "most", "held"),
    [
        (1024, 65_536, CONNECTIONS),
        (1024, resource.RLIM_INFINITY, CONNECTIONS),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, CONNECTIONS),
        (24_100, 24_100, CONNECTIONS),
        (1024, 20_000, 9950),
        (1024, 10_500, 5200),
        (256, 256, 5200),  # and raise_limit refuses
    ],
)
def test_as_many_connections_as_files_allow_and_12000_at_most(limit: Limit, now: int, most: int, held: int):
    limit(now, most)
    assert connections() == held
    said = list(few_connections(open_files.environment()))
    assert [one.split(" at a time")[0] for one in said] == (
        [] if held == CONNECTIONS else [f"HAProxy holds {held} connections"]
    )


def test_the_limit_is_raised_and_that_is_enough(limit: Limit):
    asked = limit(1024, 20_000)
    assert list(raise_limit(open_files.environment(), with_haproxy=True)) == []
    assert asked == [(20_000, 20_000)]


@pytest.mark.parametrize(
    ("most", "chosen", "with_haproxy", "said"),
    [
        (8192, {}, True, "at most 8192 files may be open here, and 10500 are needed: raise the limit"),
        (20_000, {MAXCONN: "10000"}, True, "and 20100 are needed: raise the limit (`ulimit -Hn 20100`"),
        (20_000, {MAXCONN: "10000"}, True, f"lower {MAXCONN}"),
        (256, {}, False, "at most 256 files may be open here, and 1024 are needed"),
    ],
)
def test_a_limit_that_is_too_low_is_one_sentence(
    limit: Limit, most: int, chosen: dict[str, str], with_haproxy: bool, said: str
):
    limit(256, most)
    (found,) = raise_limit(open_files.environment() | chosen, with_haproxy=with_haproxy)
    assert said in found


def test_a_number_of_the_operators_own_is_not_called_few(limit: Limit):
    limit(1024, 20_000)
    assert list(few_connections({MAXCONN: "6000"})) == []
    assert files_for(6000) == 12_100
