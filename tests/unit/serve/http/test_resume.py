"""Resume: a reply that was lost goes on at any replica, at its exact byte, or is refused."""

import asyncio
import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audio.formats import CONTAINERS
from pipeline.errors import Draining, StoreUnavailable
from pipeline.store.sqlite import SqliteStore
from pipeline.types import CacheMode, SegmentLength
from serve.access.api_keys import Quota
from serve.access.authentication import Authenticator
from serve.access.caller import Caller
from serve.access.claims import StoreClaims
from serve.access.idempotency import Idempotency
from serve.access.quotas import LocalQuotas
from serve.access.resume_tokens import NAME, NAMESPACE, ResumeTokens, Resumption, SharedSecret
from serve.config.app_config import LimitsConfig
from serve.config.model_versions import RoutesConfig
from serve.config.policies import DegradationStep, DegradeConfig
from serve.errors import ApiError
from serve.http.resume_request import UNKNOWN_END
from serve.http.services import Services
from serve.speech.events import Started
from serve.speech.job import RequestContext
from serve.speech.load_shedding import Degrader
from serve.speech.model_selection import ModelSelector
from serve.speech.resuming import Resuming
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import open_speech
from serve.speech.speech_services import SpeechServices
from tests.support.effort import examples
from tests.support.fakes import RecordingObserver, Speaker, make_services
from tests.support.guarded import FREE, add, guarded, ring_of
from tests.support.live_server import Live, error_of, serving
from tests.support.model_versions import V1, V2, rollout

BODY = {"input": "Hello there.", "response_format": "pcm"}


@dataclass(frozen=True)
class Replicas:
    """The one that is listened to, and one that goes on: it makes the same samples, in other pieces."""

    first: Live
    other: Live


@pytest.fixture(scope="module")
def replicas() -> Iterator[Replicas]:
    with serving(make_services(Speaker())) as first, serving(make_services(Speaker(20, chunk_samples=1200))) as other:
        yield Replicas(first, other)


def post(live: Live, fields: dict[str, Any], **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(f"{live.url}/v1/audio/speech", json=BODY | fields, headers=named, timeout=60)


def resumed(live: Live, reply: requests.Response, at: int, fields: dict[str, Any], **headers: str) -> requests.Response:
    return post(live, fields, X_Resume=reply.headers["X-Resume"], Range=f"bytes={at}-", **headers)


def with_(services: Services, **parts: Any) -> Services:
    return dataclasses.replace(services, speech=dataclasses.replace(services.speech, **parts))


def resuming(idempotency: Idempotency, *, build: str = "this build", engine: str = "this engine", clock=None) -> Resuming:
    tokens = ResumeTokens(b"secret of a test", 600.0, **({} if clock is None else {"clock": clock}))
    return Resuming(tokens, idempotency, build=lambda version: build, engine=lambda version: engine)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(container=st.sampled_from(CONTAINERS), whole=st.booleans(), cut=st.floats(0, 1, exclude_max=True))
def test_what_was_heard_and_what_follows_are_the_uninterrupted_body(replicas, container, whole, cut):
    fields = {"response_format": container, "stream": not whole}
    reply = post(replicas.first, fields)
    body, at = reply.content, int(cut * len(reply.content))
    rest = resumed(replicas.other, reply, at, fields, X_Resume_Digest=hashlib.sha256(body[:at]).hexdigest())
    assert rest.status_code == 206, rest.text
    assert body[:at] + rest.content == body
    last, size = (len(body) - 1, len(body)) if whole else (UNKNOWN_END, "*")
    assert rest.headers["Content-Range"] == f"bytes {at}-{last}/{size}"
    for name in ("Content-Type", "X-Audio-Seed", "X-Voice-Id", "X-Model-Version", *(["Digest"] if whole else [])):
        assert rest.headers[name] == reply.headers[name]
    assert not whole or rest.headers["Content-Length"] == str(len(body) - at)


def test_a_resumed_reply_is_resumed_again(replicas):
    reply = post(replicas.first, {})
    again = resumed(replicas.other, reply, 1000, {})
    last = resumed(replicas.first, again, 40_001, {})
    assert reply.content[:1000] + again.content[:39_001] + last.content == reply.content


def test_behind_the_last_byte_there_is_nothing(replicas):
    for fields in ({}, {"stream": False}):
        reply = post(replicas.first, fields)
        size = len(reply.content)
        for at in (size, size + 7):
            rest = resumed(replicas.other, reply, at, fields)
            assert (rest.status_code, error_of(rest)["code"]) == (416, "range_not_satisfiable")
            assert rest.headers["Content-Range"] == f"bytes */{size}"


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(id, content) of each event."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block]
    return [(block.get("id", ""), json.loads(block["data"])) for block in blocks]


def audio_of(events: list[tuple[str, dict[str, Any]]]) -> bytes:
    return b"".join(base64.b64decode(content["audio"]) for _, content in events if content["type"] == "speech.audio.delta")


def test_events_go_on_behind_any_of_them(replicas):
    fields = {"stream_format": "sse", "response_format": "mp3"}
    reply = post(replicas.first, fields)
    whole = events(reply.text)
    *deltas, (_, done) = whole
    for count in range(1, len(deltas) + 1):
        name = deltas[count - 1][0]
        rest = events(post(replicas.other, fields, X_Resume=reply.headers["X-Resume"], Last_Event_ID=name).text)
        assert audio_of(whole[:count]) + audio_of(rest) == audio_of(whole)
        assert [content["seq"] for _, content in rest[:-1]] == list(range(count, count + len(rest) - 1))
        assert rest[-1][1] == done, "the hash of the whole, and its length"
    wrong = re.sub("-[0-9a-f]{16}$", "-0123456789abcdef", deltas[1][0])
    refused = post(replicas.other, fields, X_Resume=reply.headers["X-Resume"], Last_Event_ID=wrong)
    assert (refused.status_code, error_of(refused)["code"]) == (412, "resume_changed")


def test_a_key_goes_on_at_every_replica_of_a_store(tmp_path: Path):
    def replica() -> Services:
        idempotency = Idempotency(StoreClaims(SqliteStore(tmp_path / "store.sqlite")))
        return make_services(Speaker(), idempotency=idempotency)

    with serving(replica()) as first, serving(replica()) as other:
        reply = post(first, {}, Idempotency_Key="order-17")
        rest = post(other, {}, Idempotency_Key="order-17", Range="bytes=4711-")
        assert (rest.status_code, rest.content) == (206, reply.content[4711:])
        assert post(other, {}, Idempotency_Key="order-17").headers["Idempotency-Replayed"] == "true"
        unknown = post(other, {}, Idempotency_Key="order-18", Range="bytes=1-")
        assert (unknown.status_code, error_of(unknown)["code"]) == (412, "resume_unknown")
        other_body = post(other, {"speed": 2}, Idempotency_Key="order-17", Range="bytes=1-")
        assert (other_body.status_code, error_of(other_body)["code"]) == (409, "resume_mismatch")


def test_of_two_replies_to_a_key_that_differ_none_is_taken_for_the_other():
    idempotency = Idempotency()
    services = make_services(Speaker(), idempotency=idempotency)
    updated = with_(services, resuming=resuming(idempotency, build="another build"))
    with serving(services) as before, serving(updated) as after:
        first = post(before, {}, Idempotency_Key="k")
        second = post(after, {}, Idempotency_Key="k")
        for live in (before, after):
            assert post(live, {}, Idempotency_Key="k", Range="bytes=5-").status_code == 412
        assert resumed(before, first, 5, {}).status_code == resumed(after, second, 5, {}).status_code == 206


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"build": "another"}, "updated"), ({"engine": "another"}, "model was updated")],
)
def test_another_build_does_not_go_on(replicas, changed, says):
    idempotency = Idempotency()
    with serving(with_(make_services(Speaker()), resuming=resuming(idempotency, **changed))) as updated:
        refused = resumed(updated, post(replicas.first, {}), 100, {})
    assert (refused.status_code, error_of(refused)["code"]) == (412, "resume_changed")
    assert says in error_of(refused)["message"]
    assert refused.headers["x-should-retry"] == "false"


def test_another_voice_of_the_same_name_does_not_go_on(replicas):
    services = make_services(Speaker(), voice_id=lambda name: "voice-of-later")
    with serving(services) as later:
        refused = resumed(later, post(replicas.first, {}), 100, {})
    assert (refused.status_code, error_of(refused)["code"]) == (412, "resume_changed")


def test_bytes_that_are_not_those_of_the_reply_are_not_gone_on_with(replicas):
    refused = resumed(replicas.other, post(replicas.first, {}), 100, {}, X_Resume_Digest="0" * 64)
    assert (refused.status_code, error_of(refused)["code"]) == (412, "resume_changed")


def test_a_token_has_its_time():
    now = [1000.0]
    idempotency = Idempotency()
    services = with_(make_services(Speaker()), resuming=resuming(idempotency, clock=lambda: now[0]))
    with serving(services) as live:
        reply = post(live, {})
        now[0] += 599
        assert resumed(live, reply, 100, {}).status_code == 206
        now[0] += 2
        late = resumed(live, reply, 100, {})
    assert (late.status_code, error_of(late)["code"]) == (412, "resume_expired")
    with serving(make_services(Speaker(), LimitsConfig(resume_s=0))) as live:
        assert "X-Resume" not in post(live, {}).headers


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"X_Resume": "token"}, "invalid_range"),
        ({"X_Resume": "token", "Range": "bytes=5-9"}, "invalid_range"),
        ({"X_Resume": "token", "Range": "bytes=-5"}, "invalid_range"),
        ({"X_Resume": "token", "Range": "bytes=5-", "Last_Event_ID": "1-2-3"}, "invalid_range"),
        ({"X_Resume": "token", "Last_Event_ID": "7"}, "invalid_event_id"),
        ({"X_Resume": "token", "Range": "bytes=5-", "X_Resume_Digest": "ab"}, "invalid_digest"),
        ({"X_Resume": "token", "Range": "bytes=5-"}, "resume_unknown"),
        ({"X_Resume": "äöü".encode().decode("latin-1"), "Range": "bytes=5-"}, "resume_unknown"),
        ({"X_Resume": "A" * 4000, "Range": "bytes=5-"}, "resume_unknown"),
    ],
)
def test_what_is_malformed_is_named(replicas, headers, code):
    refused = post(replicas.first, {}, **headers)
    assert (refused.status_code, error_of(refused)["code"]) == (412 if code == "resume_unknown" else 400, code)


def test_a_range_alone_means_nothing_to_a_post(replicas):
    assert post(replicas.first, {}, Range="bytes=5-").status_code == 200


def test_another_body_or_json_does_not_go_on(replicas):
    reply = post(replicas.first, {})
    refused = resumed(replicas.other, reply, 100, {"input": "Goodbye."})
    assert (refused.status_code, error_of(refused)["code"]) == (409, "resume_mismatch")
    assert "X-Resume" not in post(replicas.first, {"stream": False, "timestamps": "segment"}).headers
    timed = resumed(replicas.other, reply, 100, {"stream": False, "timestamps": "segment"})
    assert (timed.status_code, error_of(timed)["code"]) == (400, "not_resumable")


def test_what_was_left_out_under_load_is_left_out_of_the_rest():
    class Loaded(Degrader):
        def apply_to_body(self, body, *, seeded=False, strict=False):
            return self.without(body, [DegradationStep.REFINE, DegradationStep.SEGMENTS, DegradationStep.FIRST_CHUNK])

    speaker = Speaker()
    with (
        serving(make_services(Speaker(), degrader=Loaded(DegradeConfig()))) as loaded,
        serving(make_services(speaker)) as calm,
    ):
        reply = post(loaded, {"refine": True})
        assert reply.headers["X-Degraded"] == "refine, segments, first_chunk"
        rest = resumed(calm, reply, 100, {"refine": True})
    assert rest.headers["X-Degraded"] == reply.headers["X-Degraded"]
    (request,) = speaker.requests
    assert (request.refine, request.segment_length, request.scheduling.skipped_chunk_sizes) == (None, SegmentLength.HALF, 2)
    assert request.cache.mode is CacheMode.DEFAULT, "its seed is known: the cache may have it"


def test_the_version_that_spoke_goes_on_although_others_are_drawn_by_now():
    shares, speaker = rollout(v1=1), Speaker()
    with serving(make_services(speaker, models=ModelSelector(shares))) as live:
        reply = post(live, {"user": "somebody"})
        shares.configure(RoutesConfig(weights={V2: 1.0}))
        assert post(live, {"user": "somebody"}).headers["X-Model-Version"] == V2
        rest = resumed(live, reply, 100, {"user": "somebody"})
        assert (rest.status_code, rest.headers["X-Model-Version"]) == (206, V1)
        assert speaker.requests[-1].model == V1
        del shares.versions[V1]
        refused = resumed(live, reply, 100, {"user": "somebody"})
    assert (refused.status_code, error_of(refused)["code"]) == (412, "resume_changed")
    assert f"{V1} is not served any more" in error_of(refused)["message"]


@pytest.mark.parametrize("first", [0, 1, 100])
def test_a_charge_pays_for_a_reply_and_one_continuation_of_it(tmp_path: Path, first: int):
    """Whatever is made again beyond that is charged: from byte 0, with the same token, with the token of a continuation."""
    store, quotas, speaker = SqliteStore(tmp_path / "keys.sqlite"), LocalQuotas(), Speaker()
    key, key_id = add(store, quota=FREE.model_copy(update={"characters_a_day": 4 * len(BODY["input"])}))
    with guarded(Authenticator(ring_of(store), quotas), speaker) as live:
        reply = post(live, {}, X_Api_Key=key)
        rests = [resumed(live, reply, first, {}, X_Api_Key=key) for _ in range(3)]
        chain = [rests[0]]
        while chain[-1].status_code == 206:
            chain.append(resumed(live, chain[-1], first, {}, X_Api_Key=key))
        assert all(part.content == reply.content[first:] for part in rests if part.status_code == 206)
        assert (chain[-1].status_code, error_of(chain[-1])["code"]) == (429, "quota_exceeded")
        assert asyncio.run(quotas.characters_today(key_id)) == 4 * len(BODY["input"])
    paid = 4
    assert speaker.opened <= paid + paid, "each charge pays for a reply and one continuation at most"
    assert first or speaker.opened == paid


def test_a_continuation_that_speaks_nothing_is_not_used_up(tmp_path: Path):
    store, quotas = SqliteStore(tmp_path / "keys.sqlite"), LocalQuotas()
    key, key_id = add(store, quota=FREE.model_copy(update={"characters_a_day": 12}))
    with guarded(Authenticator(ring_of(store), quotas)) as live:
        reply = post(live, {}, X_Api_Key=key)
        assert resumed(live, reply, 10**6, {}, X_Api_Key=key).status_code == 416
        assert resumed(live, reply, 100, {}, X_Api_Key=key, X_Resume_Digest="0" * 64).status_code == 412
        assert resumed(live, reply, 100, {}, X_Api_Key=key).content == reply.content[100:]
        assert resumed(live, reply, 100, {}, X_Api_Key=key).status_code == 429
        assert asyncio.run(quotas.characters_today(key_id)) == 12


TEXTS = ("model", "body", "resolved", "build", "engine")
KNOWN = {"seed": 1, "degraded": [], "until": 9e9, "paid": True, **dict.fromkeys(TEXTS, "")}
OTHERS = ({"new": 1}, {"degraded": None}, {"degraded": [1]}, {"until": "soon"}, {"until": None}, {"seed": "1"}, {"build": None})


@pytest.mark.parametrize(
    "content",
    [
        *(json.dumps({**KNOWN, **fields}) for fields in OTHERS),
        *(json.dumps({name: KNOWN[name] for name in KNOWN if name != left_out}) for left_out in KNOWN),
        *("null", "7", "[]", '"text"', "{", "", "[" * 1500, "NaN", '{"until": NaN}', "\udcff"),
    ],
)
def test_a_token_of_another_release_is_a_412(content: str):
    tokens, raw = ResumeTokens(b"secret", 600.0), content.encode(errors="surrogateescape")
    token = base64.urlsafe_b64encode(tokens._signature("anna", raw) + raw).decode().rstrip("=")
    with pytest.raises(ApiError) as refusal:
        tokens.read("anna", token)
    assert (refusal.value.spec.status, refusal.value.spec.code) == (412, "resume_changed")


def test_a_reply_belongs_to_its_key(tmp_path: Path):
    store = SqliteStore(tmp_path / "keys.sqlite")
    (mine, _), (other, _) = (add(store) for _ in range(2))
    with guarded(Authenticator(ring_of(store))) as live:
        reply = post(live, {}, X_Api_Key=mine)
        foreign = resumed(live, reply, 100, {}, X_Api_Key=other)
        assert (foreign.status_code, error_of(foreign)["code"]) == (412, "resume_unknown")
        post(live, {}, X_Api_Key=other, Idempotency_Key="k")
        mine_by_key = post(live, {}, X_Api_Key=mine, Idempotency_Key="k", Range="bytes=5-")
        assert (mine_by_key.status_code, error_of(mine_by_key)["code"]) == (412, "resume_unknown")


def test_what_is_made_again_counts_as_audio_and_takes_a_place():
    quota = Quota(audio_s_a_minute=1.5)
    caller = Caller("some-key", quota=quota, quotas=LocalQuotas())
    services = make_services(Speaker()).speech

    async def play() -> None:
        token = await hear(services, RequestContext("one", caller))
        assert not (await caller.quotas.acquire("some-key", quota, None)).refusal
        await hear(services, RequestContext("two", caller, resumes=Resumption(47_000, token)))
        assert (await caller.quotas.acquire("some-key", quota, None)).refusal == "quota_exceeded"
        services.admission.close()
        with pytest.raises(Draining):
            await hear(services, RequestContext("three", caller, resumes=Resumption(47_000, token)))

    async def hear(services: SpeechServices, context: RequestContext) -> str | None:
        token = None
        with open_speech(services, context) as speech:
            job = await speech.accept(SpeechBody(**BODY))
            async for event in speech.speak(job):
                token = event.token if isinstance(event, Started) else token
        return token

    asyncio.run(play())


def test_all_replicas_of_a_store_have_one_secret(tmp_path: Path):
    shared = [SharedSecret(SqliteStore(tmp_path / "store.sqlite")) for _ in range(8)]
    tokens = [ResumeTokens(secret, 60) for secret in shared]
    with pytest.raises(StoreUnavailable, match="could not be read yet"):
        tokens[0].read("t", "")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(SharedSecret.refresh, shared))
    assert len({secret.digest("x") for secret in tokens}) == 1
    shared[0]._store.delete(NAMESPACE, NAME)
    shared[1].refresh()
    shared[0].refresh()
    assert tokens[0].digest("x") == tokens[2].digest("x"), "a store that was emptied gets the known one again"


def test_claims_take_no_more_room_than_their_records(tmp_path: Path):
    store, now = SqliteStore(tmp_path / "store.sqlite"), [0.0]
    claims = StoreClaims(store, clock=lambda: now[0], records=2)

    async def play() -> None:
        for index in range(12):
            assert await claims.claim(f"name {index}", b"content", 10) == b"content"
            assert await claims.claim(f"name {index}", b"other", 10) == b"content"
        assert len(store.changes("claims").entries) == 2
        await claims.release("name 11")
        assert await claims.claimed("name 11") is None
        assert await claims.claim("name 11", b"other", 10) == b"other"
        now[0] += 11
        assert await claims.claimed("name 11") is None
        gone = StoreClaims(SqliteStore(tmp_path / "no-folder-here" / "\0"))
        assert await gone.claim("name", b"content", 10) is None

    asyncio.run(play())


def test_a_resumed_reply_is_counted():
    with serving(make_services(Speaker(), observer=(observer := RecordingObserver()))) as live:
        first = post(live, {})
        assert [resumed(live, first, at, {}).status_code for at in (10, len(first.content))] == [206, 416]
    assert [stats.is_resumed for stats in observer.replies] == [False, True, False]
