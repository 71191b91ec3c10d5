"""The fleet's parts: what is signed, what is fetched, what is swapped, what is chosen."""

import asyncio
import dataclasses
import hashlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.checkpoint.layout import GPT_FILE, TOKENIZER_FILE
from pipeline.checkpoint.manifest import read_verified
from pipeline.config import PipelineConfig
from pipeline.errors import AtCapacity, ConfigError, EngineDead, NonFiniteOutput, SynthesisError
from pipeline.yaml_loader import parse_yaml
from serve.commands.operate.run_center import write_keys
from serve.config.app_config import PROJECT
from serve.config.config_file import find_mistakes
from serve.config.edge import EdgeConfig
from serve.edge import box_agent, box_folder
from serve.edge.box_folder import LEAST_FREE_BYTES, BoxFolder, BoxTrouble, Superseded
from serve.edge.broker_link import client_of
from serve.edge.center import Center
from serve.edge.download import FetchError
from serve.edge.fleet import BoxState, choose, read_fleet, read_variants
from serve.edge.signed_manifest import (
    MOST_FILE_BYTES,
    MOST_MESSAGE_BYTES,
    FileEntry,
    ManifestRefused,
    Variant,
    open_manifest,
    read_private_key,
    sign,
)
from serve.edge.stage_swap import StageSwap, WentBack
from serve.local import process_config
from serve.local.local_handle import LocalHandle
from serve.resilience.quarantine import CURRENT_REQUEST, Quarantine
from tests.support.fleet import NullBox, NullStage, manifest, noise
from tests.support.waiting import until
from tests.unit.serve.local.test_local import of_box

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
MESSAGE = sign(manifest(), KEY)


# The message.


def test_a_manifest_arrives_as_it_was_signed():
    assert open_manifest(MESSAGE, KEY.public_key(), "b1") == manifest()


@given(st.integers(0, len(MESSAGE) - 1), st.integers(1, 255))
def test_a_message_with_any_other_byte_is_refused(place: int, change: int):
    wrong = bytearray(MESSAGE)
    wrong[place] ^= change
    with pytest.raises(ManifestRefused):
        open_manifest(bytes(wrong), KEY.public_key(), "b1")


@given(st.binary(max_size=300) | st.integers(0, len(MESSAGE) - 1).map(lambda length: MESSAGE[:length]))
def test_what_was_not_signed_is_refused(message: bytes):
    with pytest.raises(ManifestRefused):
        open_manifest(message, KEY.public_key(), "b1")


def test_another_key_another_box_other_bytes_and_a_long_message_are_refused():
    body = json.dumps(json.loads(MESSAGE.partition(b"\n")[2])).encode()  # the same, with blanks
    with pytest.raises(ManifestRefused, match="signature"):
        open_manifest(MESSAGE, Ed25519PrivateKey.generate().public_key(), "b1")
    with pytest.raises(ManifestRefused, match="this box is b2"):
        open_manifest(MESSAGE, KEY.public_key(), "b2")
    with pytest.raises(ManifestRefused, match="signature"):
        open_manifest(MESSAGE.partition(b"\n")[0] + b"\n" + body, KEY.public_key(), "b1")
    with pytest.raises(ManifestRefused, match="at most"):
        open_manifest(b"a" * (MOST_MESSAGE_BYTES + 1), KEY.public_key(), "b1")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "asset/../../x", "asset/gpt", "asset\\gpt", "", "SHA256SUMS"])
def test_only_files_of_a_checkpoint_can_be_named(path: str):
    with pytest.raises(ValidationError):
        manifest(path=path)


@pytest.mark.parametrize("file", [{"size": -1}, {"size": MOST_FILE_BYTES + 1}, {"sha256": "x" * 64}, {"sha256": "../../x"}])
def test_a_file_has_a_bounded_size_and_a_hash(file: dict[str, Any]):
    with pytest.raises(ValidationError):
        manifest(**file)


def test_a_box_keeps_its_own_settings_but_those_of_the_variant(tmp_path: Path):
    base = PipelineConfig.model_validate(
        {"engine": {"slots": 3, "dtype": "float32"}, "vocoder": {"threads": 1, "size": "small"}}
    )

    def settings(**of: str) -> PipelineConfig:
        return manifest().variants[0].model_copy(update=of).settings(base, tmp_path)

    heavy, light = settings(vocoder="full"), settings(weights="int4", vocoder="small")
    assert (heavy.engine, heavy.vocoder.size) == (base.engine, "full")
    assert (light.engine.weights, light.engine.dtype, light.engine.slots) == ("int4", "bfloat16", 3)
    assert (light.vocoder, light.checkpoint) == (base.vocoder, str(tmp_path))


# The folder of a box.


class Hostile(http.server.BaseHTTPRequestHandler):
    """Serves what the test sets: a body, a status, a redirect."""

    body, status, headers_of, length = b"", 200, {}, None  # type: ignore[var-annotated]
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.send_response(self.status)
        for name, value in self.headers_of.items():
            self.send_header(name, value)
        if self.length is not None:
            self.send_header("Content-Length", str(self.length))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hostile() -> Iterator[tuple[type[Hostile], str]]:
    handler = type("Handler", (Hostile,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> BoxFolder:
    return BoxFolder(tmp_path / "edge", noise(tmp_path / "shipped", 1, 100))


def variant_of(content: bytes, **file: Any) -> Variant:
    return manifest(**{"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), **file}).variants[0]


def stored(folder: BoxFolder) -> int:
    return sum(path.stat().st_size for path in folder.root.rglob("*") if path.is_file())


def test_a_variant_is_fetched_once_and_opens_as_a_checkpoint(hostile: Any, folder: BoxFolder):
    handler, url = hostile
    handler.body = b"right"
    shipped = FileEntry(path=TOKENIZER_FILE, size=2, sha256=hashlib.sha256(b"{}").hexdigest())
    variant = variant_of(b"right").model_copy(update={"files": (shipped, *variant_of(b"right").files)})
    folder._verified[shipped.sha256] = folder._shipped / TOKENIZER_FILE
    folder.fetch(variant, url, threading.Event())
    assert folder.has(variant)
    handler.status = 500
    folder.fetch(variant, url, threading.Event())
    assert read_verified(folder.open(variant), GPT_FILE) == b"right"
    folder.keep_only([], variant)
    assert folder.has(variant)
    folder.keep_only([], None)
    assert not folder.has(variant)
    assert stored(folder) == 0
    assert (folder._shipped / TOKENIZER_FILE).is_file()


@pytest.mark.parametrize(
    ("serves", "refusal"),
    [
        ({"body": b"wrong"}, FetchError),
        ({"body": b"right and more", "length": 14}, BoxTrouble),
        ({"body": b"x" * (3 << 20)}, BoxTrouble),
        ({"status": 302, "headers_of": {"Location": "http://127.0.0.1:1/"}}, BoxTrouble),
        ({"status": 404}, FetchError),
    ],
)
def test_a_center_that_serves_something_else_leaves_nothing(
    hostile: Any, folder: BoxFolder, serves: dict[str, Any], refusal: type[Exception]
):
    handler, url = hostile
    for name, value in serves.items():
        setattr(handler, name, value)
    variant = variant_of(b"right")
    with pytest.raises(refusal):
        folder.fetch(variant, url, threading.Event())
    assert not folder.has(variant)
    assert stored(folder) == 0


def test_the_disk_is_never_filled(hostile: Any, folder: BoxFolder, monkeypatch: pytest.MonkeyPatch):
    handler, url = hostile
    handler.body = b"y" * (3 << 20)
    for disk in ([LEAST_FREE_BYTES + (3 << 20) - 1], [1 << 40, 1 << 40]):  # too small; others fill it meanwhile
        free = iter(disk)
        monkeypatch.setattr(box_folder.shutil, "disk_usage", lambda path, free=free: SimpleNamespace(free=next(free, 0)))
        with pytest.raises(BoxTrouble, match="free some space"):
            folder.fetch(variant_of(handler.body), url, threading.Event())
        assert stored(folder) < 3 << 20


def test_a_download_ends_when_it_is_told_to(hostile: Any, folder: BoxFolder):
    handler, url = hostile
    handler.status, stop = 503, threading.Event()
    stop.set()
    with pytest.raises(Superseded):
        folder.fetch(variant_of(b"right"), url, stop)


def test_another_tokenizer_needs_another_start(hostile: Any, folder: BoxFolder):
    handler, url = hostile
    handler.body = b"[1]"
    variant = variant_of(b"[1]", path=TOKENIZER_FILE)
    folder.fetch(variant, url, threading.Event())
    with pytest.raises(BoxTrouble, match=f"another {TOKENIZER_FILE}"):
        folder.open(variant)


def test_a_damaged_file_and_a_damaged_record_are_no_end(folder: BoxFolder, tmp_path: Path):
    variant = variant_of(b"right")
    (folder.root / "files" / variant.files[0].sha256).write_bytes(b"wrong")
    assert not folder.has(variant)
    folder.remember(serial=7)
    assert BoxFolder(folder.root, tmp_path / "shipped").record.serial == 7
    (folder.root / "box.json").write_bytes(b"{")
    assert BoxFolder(folder.root, tmp_path / "shipped").record.serial == 0


# The swap.


@pytest.fixture
def handle() -> LocalHandle:
    return LocalHandle(NullStage(1))


async def spoken(handle: LocalHandle, segments: int = 1, begun: asyncio.Event | None = None) -> set[int]:
    """The marks of the stages that one request is spoken by."""
    marks: set[int] = set()
    with Quarantine().admit(b"request") as request:
        CURRENT_REQUEST.set(request)
        for _ in range(segments):
            async with aclosing(handle.stream("generate", None)) as blocks:
                async for block in blocks:
                    marks |= set(block.codes.ravel().tolist())
                    if begun is not None:
                        begun.set()
    return marks


def loading(stage: NullStage) -> Callable[[], Any]:
    async def load() -> NullStage:
        return stage

    return load


async def test_requests_end_with_the_stage_they_began_with(handle: LocalHandle):
    old, new, begun = handle.stage, NullStage(2), asyncio.Event()
    old.block_s = 0.01
    speaking = asyncio.create_task(spoken(handle, 4, begun))
    await begun.wait()
    await StageSwap(handle, period_s=0.0).to(loading(new))
    assert await asyncio.create_task(spoken(handle, 4)) == {2}
    assert not speaking.done()
    assert not old.is_closed
    assert await speaking == {1}
    await until(lambda: old.is_closed)
    assert not new.is_closed


async def test_a_request_that_has_ended_holds_no_stage_whatever_its_task_has_begun(handle: LocalHandle):
    old, new = handle.stage, NullStage(2)
    assert await spoken(handle) == {1}  # in this task, whose context keeps the request
    await StageSwap(handle, period_s=0.0).to(loading(new))
    assert await handle.ask("traits") is new.traits_of
    await until(lambda: old.is_closed)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block_s": 0.2}, "takes"),
        ({"trouble": NonFiniteOutput("not a number")}, "not a number"),
        ({"traits_of": dataclasses.replace(NullStage(0).traits_of, look_ahead=9)}, "other sizes"),
    ],
)
async def test_a_stage_that_is_worse_never_serves(handle: LocalHandle, changes: dict[str, Any], reason: str):
    old, new = handle.stage, NullStage(2)
    vars(new).update(changes)
    swap = StageSwap(handle, period_s=0.0)
    with pytest.raises(WentBack, match=reason):
        await swap.to(loading(new))
    assert handle.stage is old
    await until(lambda: new.is_closed)
    assert not old.is_closed
    await swap.to(loading(NullStage(3)))
    assert await asyncio.create_task(spoken(handle)) == {3}


@pytest.mark.parametrize("trouble", [EngineDead("dead"), NonFiniteOutput("x")])
async def test_a_stage_that_becomes_worse_in_its_trial_goes(handle: LocalHandle, trouble: SynthesisError):
    old, new = handle.stage, NullStage(2)
    swapping = asyncio.create_task(StageSwap(handle, period_s=0.02).to(loading(new)))
    await until(lambda: handle.stage is new)
    new.trouble = trouble
    with pytest.raises(WentBack):
        await swapping
    assert handle.stage is old


async def test_a_busy_stage_is_no_worse_and_a_slow_one_may_follow_a_slower_one(handle: LocalHandle):
    handle.stage.block_s = 0.2
    await StageSwap(handle, period_s=0.0).to(loading(quick := NullStage(2)))
    quick.trouble = AtCapacity("full", retry_after_s=1.0)
    new = NullStage(3)
    new.check_health = lambda: None  # type: ignore[method-assign]
    new.trouble = quick.trouble
    await StageSwap(handle, period_s=0.0).to(loading(new))
    assert handle.stage is new


# The agent.


@pytest.fixture
def box(tmp_path: Path) -> NullBox:
    write_keys(tmp_path / "center.key")
    return NullBox(tmp_path, "mqtt://127.0.0.1:1", tmp_path / "center.key")


def message_for(box: NullBox, serial: int, **file: Any) -> bytes:
    return sign(manifest(serial=serial, **file), read_private_key(Path(str(box.agent._config.key).removesuffix(".pub"))))


async def test_serial_numbers_only_grow_and_the_box_remembers_them(box: NullBox, tmp_path: Path):
    await box.agent.accept(message_for(box, 5))
    await box.agent.accept(message_for(box, 5))
    for older in (message_for(box, 4), message_for(box, 5, size=6)):
        with pytest.raises(ManifestRefused, match="has had 5"):
            await box.agent.accept(older)
    again = NullBox(tmp_path, "mqtt://127.0.0.1:1", tmp_path / "center.key").agent
    with pytest.raises(ManifestRefused, match="has had 5"):
        await again.accept(message_for(box, 4))
    await again.accept(message_for(box, 6))
    assert (await again.state())["serial"] == 6


async def test_a_variant_with_which_the_process_has_died_twice_is_given_up(box: NullBox, tmp_path: Path):
    variant = manifest().variants[0]
    for tries in (1, 2):
        box.agent._folder.count(variant, tries)
        again = NullBox(tmp_path, "mqtt://127.0.0.1:1", tmp_path / "center.key").agent
        assert (await again.state())["failed"] == [variant.id][: tries - 1]


def test_a_key_that_is_none_is_explained(tmp_path: Path):
    (tmp_path / "k.pub").write_text("no key")
    with pytest.raises(ConfigError, match="no public Ed25519 key"):
        NullBox(tmp_path, "mqtt://h", tmp_path / "k")
    assert write_keys(tmp_path / "k.pub") == 1, "a key is never overwritten"


# The choice.


def state(**fields: Any) -> BoxState:
    return BoxState(**({"online": True, "memory_mib": 4096} | fields))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = "".join(
        f"  {name}: {{folder: {noise(tmp_path / name, seed, 100)}, weights: {weights}, vocoder: full, {needs}}}\n"
        for seed, (name, weights, needs) in enumerate(
            [
                ("light", "int4", "rtf: 5"),
                ("middle", "int8", "memory_mib: 1000"),
                ("heavy", "bf16", "link_kib_per_s: 64, rtf: 0.6"),
            ]
        )
    )
    text = "broker: mqtt://h\nkey: k\noptions: {client_id: c}\nurl: http://h:1\nvariants:\n"
    (tmp_path / "fleet.yaml").write_text(text + rows)
    return tmp_path / "fleet.yaml"


def test_the_table_is_applied_row_by_row(table: Path):
    fleet = read_fleet(table)
    rows, (variants, places) = tuple(fleet.variants.values()), read_variants(fleet, table.parent)
    light, middle, heavy = (variant.id for variant in variants)
    assert [file.path for file in variants[0].files] == [TOKENIZER_FILE, GPT_FILE, "asset/Vocos.safetensors"]
    assert set(places) == {file.sha256 for variant in variants for file in variant.files}

    def names(**fields: Any) -> list[str]:
        return [variant.name for variant in choose(rows, variants, state(**fields))]

    assert names() == ["light", "middle"], "no link was measured yet"
    assert names(link_kib_per_s=64) == ["light", "middle", "heavy"]
    assert names(link_kib_per_s=64, memory_mib=999) == ["light", "heavy"]
    assert names(link_kib_per_s=63) == ["light", "middle"]
    assert names(link_kib_per_s=64, rtf=0.31) == ["light", "middle"], "the heavy one is slower"
    assert names(variant_id=heavy, rtf=0.6) == ["light", "middle", "heavy"], "what it has, it keeps"
    assert names(variant_id=heavy, rtf=0.61) == ["light", "middle"]
    assert names(variant_id=middle, rtf=0.41) == ["light", "middle"]
    assert names(variant_id=middle, rtf=0.81) == ["light"]
    assert names(failed=(middle, heavy)) == ["light"]
    assert names(failed=(light, middle, heavy), link_kib_per_s=64) == ["light"]
    assert names(memory_mib=0) == ["light"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("broker: mqtt://h", "broker: a center needs one"),
        ("url: http://h:1", "url: "),
        ("weights: int4", "unknown key"),
    ],
)
def test_a_wrong_table_is_explained(table: Path, line: str, sentence: str):
    table.write_text(table.read_text().replace(line, line.replace("weights", "wights") if "w" in line else ""))
    with pytest.raises(ConfigError, match=sentence):
        read_fleet(table)


# The center.


@pytest.fixture
def center(table: Path) -> Center:
    write_keys(table.parent / "k")
    return Center(table)


async def test_a_number_grows_with_what_it_stands_for_and_outlives_its_file(center: Center, table: Path):
    key = read_private_key(table.parent / "k").public_key()

    async def serial(at: Center = center, **fields: Any) -> int:
        answer = await at.answer("b1", state(**fields).model_dump_json().encode())
        assert answer is not None
        return open_manifest(answer, key, "b1").serial

    assert [await serial(), await serial(), await serial(link_kib_per_s=99)] == [1, 1, 2]
    assert await serial(Center(table), link_kib_per_s=99) == 2
    table.with_suffix(".serials.json").unlink()
    assert await serial(Center(table), serial=2) == 3
    assert await center.answer("b1", box_agent.AWAY) is None


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("b1", b""),
        ("b1", b"\xff\xfe"),
        ("b1", b"[" * 10_000),
        ("b1", b'{"online": true, "rtf": NaN, "failed": 5}'),
        ("b1", b'{"online": true, "serial": 1e300}'),
        ("b1", b'{"online": true, "x": "' + b"a" * (16 << 10) + b'"}'),
        ("../b", b'{"online": true}'),
    ],
)
async def test_what_is_no_state_is_refused(center: Center, name: str, payload: bytes):
    with pytest.raises(ValueError):
        await center.answer(name, payload)


# The section of the configuration.

EDGE = {"broker": "mqtts://u:p@h", "key": "center.key.pub", "options": {"client_id": "b1", "ca_certs": "ca.pem"}}


def mistakes(edge: dict[str, Any], **pipeline: Any) -> list[str]:
    document = of_box()
    args = document["applications"][0]["args"]
    args["edge"] = edge
    args["pipeline"]["vocoder"] |= pipeline
    return find_mistakes(document)


def test_a_box_of_a_fleet_is_described(monkeypatch: pytest.MonkeyPatch):
    assert mistakes(EDGE) == []
    (mistake,) = mistakes(EDGE, placement="separate")
    assert "set pipeline.vocoder.placement: with_acoustic" in mistake
    of_ray = parse_yaml((PROJECT / "configs/dev.yaml").read_text())
    of_ray["applications"][0]["args"]["edge"] = EDGE
    assert any("set runtime: process, or remove edge" in mistake for mistake in find_mistakes(of_ray))
    monkeypatch.setattr(process_config, "find_spec", lambda name: None)
    (mistake,) = mistakes(EDGE)
    assert "pip install 'chattts-serve[edge]'" in mistake


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"broker": "http://u:secret@h"}, "a broker is mqtt://"),
        ({"broker": "mqtt://u:secret@h/path"}, "a broker is mqtt://"),
        ({"key": None}, "needs key"),
        ({"options": {}}, "options.client_id"),
        ({"options": {"client_id": "a/b"}}, "letters, digits"),
        ({"options": {"client_id": "b1", "keepalive": 1}}, "keepalive"),
        ({"options": {"client_id": "b1", "clean": 1}}, "options"),
    ],
)
def test_mistakes_of_the_section_are_named(changes: dict[str, Any], sentence: str):
    (mistake,) = mistakes(EDGE | changes)
    assert sentence in mistake
    assert "secret" not in mistake


async def test_a_cancellation_that_comes_with_the_brokers_answer_is_not_lost():
    client = client_of(EdgeConfig(broker="mqtt://127.0.0.1", key="center.pub", options={"client_id": "b"}))
    answer: asyncio.Future[None] = asyncio.Future()
    waiting = asyncio.create_task(client._wait_for(answer, None))
    await asyncio.sleep(0)
    answer.set_result(None)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=10)
    assert waiting.cancelled()
