"""Conversations through Serve: the bytes of HTTP, and slots that an interruption or a client that leaves frees."""

import base64
import json
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.cluster import FLAT, LONG, Cluster
from tests.support.waiting import wait_until

SPEECH = {"response_format": "pcm", "seed": 5, "cache": "no-store"}
SENTENCES = ("This is the first of two sentences. ", "And this is the second one.")


def opened(cluster: Cluster) -> ClientConnection:
    return connect(cluster.url("/v1/audio/conversation").replace("http", "ws"))


def say(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def heard_until(socket: ClientConnection, kind: str) -> list[dict[str, Any]]:
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] != kind:
        heard.append(json.loads(socket.recv(timeout=60)))
        assert heard[-1]["type"] != "error", heard[-1]
    return heard


@pytest.mark.parametrize("latency", ["exact", "low"])
def test_words_as_they_are_written_have_the_bytes_of_http(cluster: Cluster, latency: str):
    speech = SPEECH | {"latency": latency}
    with opened(cluster) as socket:
        say(socket, "open", sentences=True, speech=speech)
        for piece in "".join(SENTENCES).split(" "):
            say(socket, "text", text=f"{piece} " if piece != "one." else piece)
        say(socket, "close")
        heard = heard_until(socket, "closed")
        audio = b"".join(base64.b64decode(one["audio"]) for one in heard if one["type"] == "audio")
        assert audio == b"".join(cluster.speak(input=sentence, latency=latency).content for sentence in SENTENCES)
        say(socket, "open", speech=speech)
        say(socket, "text", text="".join(SENTENCES))
        say(socket, "close")
        whole = b"".join(base64.b64decode(one["audio"]) for one in heard_until(socket, "closed") if one["type"] == "audio")
    assert whole == cluster.speak(input="".join(SENTENCES), latency=latency).content


def test_an_interruption_and_a_client_that_leaves_free_the_slots(cluster: Cluster):
    for leaves in (False, True):
        with opened(cluster) as socket:
            say(socket, "open", speech={**SPEECH, **FLAT})
            say(socket, "text", text=LONG)
            say(socket, "flush")
            heard_until(socket, "audio")
            assert cluster.in_flight() == 1
            if not leaves:
                say(socket, "cancel", played_ms=20)
                cancelled = heard_until(socket, "cancelled")[-1]
                assert cancelled["heard"]["ms"] == 20
                assert cancelled["heard"]["unheard_steps"] > 0
                wait_until(lambda: cluster.in_flight() == cluster.slots_used() == 0, 20.0)
                say(socket, "open")
                assert heard_until(socket, "opened")
        wait_until(lambda: cluster.in_flight() == cluster.slots_used() == 0, 20.0)
