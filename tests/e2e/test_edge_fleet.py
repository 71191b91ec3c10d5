"""A fleet: a real broker, a real center, boxes whose stages compute nothing, and one that speaks."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiomqtt
import psutil
import pytest
import requests

from pipeline.errors import NonFiniteOutput
from serve.commands.operate.run_center import write_keys
from serve.edge import box_folder, broker_link
from serve.edge.broker_link import STATE, TARGET
from serve.edge.signed_manifest import read_private_key, sign
from tests.e2e.test_one_process import LONG, SENTENCE, Box
from tests.support.fleet import HEAVY, Center, NullBox, NullStage, manifest
from tests.support.relay import relay
from tests.support.services import Mosquitto, needed_program
from tests.support.started import short_folder, started
from tests.support.waiting import until, wait_until

SLOW_LINK = 64_000  # bytes per second
SPEECH = LONG | {"input": SENTENCE * 4}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    running = Mosquitto(tmp_path)
    yield running
    running.kill()


@asynccontextmanager
async def running(*boxes: NullBox) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(box.agent.run()) for box in boxes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def publish(broker: Mosquitto, *messages: tuple[str, bytes]) -> None:
    async with aiomqtt.Client("127.0.0.1", broker.port) as client:
        for topic, payload in messages:
            await client.publish(topic, payload, qos=1, retain=True)


async def state_of(broker: Mosquitto, name: str) -> dict[str, Any]:
    """What a box has published last."""
    async with aiomqtt.Client("127.0.0.1", broker.port) as client:
        await client.subscribe(STATE.format(name))
        async with asyncio.timeout(60):
            message = await anext(aiter(client.messages))
        state: dict[str, Any] = json.loads(message.payload)
        return state


async def test_five_boxes_follow_their_center_through_every_loss(broker: Mosquitto, tmp_path: Path):
    center = Center(tmp_path, broker.url)
    boxes = [NullBox(tmp_path / f"b{number}", broker.url, center.key, f"b{number}") for number in range(5)]
    try:
        async with running(*boxes[:4]):
            await until(lambda: [box.runs for box in boxes[:4]] == ["dtype"] * 4)
            assert [box.loaded for box in boxes[:4]] == [["int8", "dtype"]] * 4, "the light one speaks first"
            center.kill()
            broker.kill()
            broker.start()
            async with running(boxes[4]):
                await asyncio.to_thread(center.start)
                await until(lambda: boxes[4].runs == "dtype")
            assert await state_of(broker, "b4") == {"online": False}
        again = NullBox(tmp_path / "b0", broker.url, center.key, "b0")
        center.kill()
        broker.kill()
        async with running(again):
            await until(lambda: again.runs == "dtype")
        assert again.loaded == ["dtype"], "it needs neither broker nor center for what it has"
    finally:
        center.kill()


async def test_a_link_that_drops_three_times_costs_no_byte(broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(box_folder, "RETRIES", box_folder.RetryPolicy(first_pause_s=0.05, longest_pause_s=0.2))
    center = Center(tmp_path, broker.url, url="http://127.0.0.1:1")
    try:
        with relay(center.port, SLOW_LINK) as link:
            fleet = tmp_path / "fleet.yaml"
            fleet.write_text(fleet.read_text().replace("http://127.0.0.1:1\n", f"{link.url}\n"))
            center.kill()
            center.start()
            box = NullBox(tmp_path / "b1", broker.url, center.key)
            async with running(box):
                await until(lambda: box.runs == "int8")
                for part in (1, 2, 3):
                    await until(lambda part=part: link.passed > part * HEAVY // 4)
                    assert box.runs == "int8", "it speaks with the light one meanwhile"
                    await asyncio.to_thread(link.cut)
                    link.restore()
                await until(lambda: box.runs == "dtype")
            assert link.passed < 1.25 * HEAVY, "what had arrived was not sent again"
    finally:
        center.kill()


async def test_what_a_hostile_broker_sends_changes_nothing(broker: Mosquitto, tmp_path: Path):
    center = Center(tmp_path, broker.url)
    center.kill()
    box, target = NullBox(tmp_path / "b1", broker.url, center.key), TARGET.format("b1")
    key, other = read_private_key(center.key), tmp_path / "other"
    other.mkdir()
    huge = Center(other, broker.url)
    huge.kill()
    async with running(box):
        await until(lambda: (box.agent._folder.root / "files").is_dir())
        garbage = [b"", b"{}", b"\xff" * 1000, b"a" * (200 << 10), b"a\n" * 1000, sign(manifest(), read_private_key(huge.key))]
        await publish(broker, *((target, payload) for payload in garbage))
        await until(lambda: "without the signature" in box.agent._problem)
        await publish(broker, (target, sign(manifest(serial=9, size=4 << 30, url="http://127.0.0.1:9"), key)))
        await until(lambda: box.agent._folder.record.serial == 9)
        await publish(broker, (target, sign(manifest(serial=8), key)))
        await until(lambda: "has had 9" in box.agent._problem)
        assert (await state_of(broker, "b1"))["online"]
    assert box.runs == "shipped"
    assert box.loaded == []


ENDLESS = 24 << 20
CONNACK = bytes([0x20, 3, 0, 0, 0])
PACKETS = [
    b"\xff" * 4096,
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    CONNACK + b"\x30\xff\xff\xff\x7f",  # a message of 256 MiB
    CONNACK + b"\x30\x05\x00\xff\x41\x42\x43",  # a topic longer than its message
    CONNACK + b"\x30\x06\x00\x02\xff\xfe\x00\x41",  # a topic that is no text
    CONNACK + b"\x90\x00" + b"\x00" * 100,
    CONNACK[:3],
]


async def test_a_broker_that_breaks_the_protocol_is_left_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(broker_link, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(broker_link, "ANSWER_S", 0.5)
    calls: list[int] = []
    """bytes that were sent in each"""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        number = len(calls)
        calls.append(0)
        with suppress(ConnectionError):
            writer.write(PACKETS[number % len(PACKETS)])
            while calls[number] < ENDLESS and not reader.at_eof():
                writer.write(bytes(1 << 16))
                await writer.drain()
                calls[number] += 1 << 16
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    write_keys(tmp_path / "k")
    box = NullBox(tmp_path, f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", tmp_path / "k")
    async with running(box):
        await until(lambda: len(calls) > len(PACKETS))
        opened = psutil.Process().num_fds()
        await until(lambda: len(calls) > 4 * len(PACKETS))
        await until(lambda: psutil.Process().num_fds() <= opened)
    assert max(calls) < ENDLESS, "the box reads none of them to its end"
    server.close()


async def test_a_box_goes_back_and_its_center_offers_no_more_than_it_bears(broker: Mosquitto, tmp_path: Path):
    center = Center(tmp_path, broker.url)
    box = NullBox(tmp_path / "b1", broker.url, center.key)

    def stage(mark: int, name: str) -> NullStage:
        made = NullStage(mark, name)
        made.trouble = NonFiniteOutput("not a number") if name == "dtype" else None
        return made

    box.next_stage = stage  # type: ignore[assignment]
    try:
        async with running(box):
            await until(lambda: box.loaded == ["int8", "dtype"] and box.agent._went_back)
            await until(lambda: box.agent._manifest is not None and len(box.agent._manifest.variants) == 1)
            assert box.runs == "int8"
            assert "not a number" in (await box.agent.state())["went_back"]
    finally:
        center.kill()


class Fleet:
    """A box that speaks, and the center that it belongs to."""

    def __init__(self, home: Path, folder: Path, broker: Mosquitto, center: Center) -> None:
        edge = f"{{broker: '{broker.url}', key: '{center.key}.pub', options: {{client_id: box}}}}"
        self._started = started(
            home=home, folder=folder, changes={"limits: {": f"edge: {edge}\n      limits: {{"}, shipped="box"
        )

    def __enter__(self) -> Box:
        of = self._started.__enter__()
        of.wait_until_ready()
        return Box(of, 0, 0)

    def __exit__(self, *error: Any) -> None:
        self._started.__exit__(*error)


def fingerprint(box: Box) -> str:
    return str(box.health()["acoustic"][0]["fingerprint"])


def test_a_stream_that_runs_is_not_touched_by_a_swap(broker: Mosquitto, tmp_path: Path, home: Path):
    needed_program("mosquitto", "mosquitto")
    center = Center(tmp_path, broker.url, demo=True)
    center.kill()
    try:
        with short_folder() as folder, Fleet(home, folder, broker, center) as box:
            expected, before = box.speak(**SPEECH).content, fingerprint(box)
            with requests.post(f"{box.of.url}/v1/audio/speech", json=SPEECH, stream=True, timeout=60) as reply:
                stream = reply.iter_content(1000)
                begun = next(stream)
                center.start()
                wait_until(lambda: fingerprint(box) != before)
                assert begun + b"".join(stream) == expected
            swapped = box.speak(**SPEECH)
            assert swapped.status_code == 200
            assert swapped.content != expected
    finally:
        center.kill()


@pytest.mark.nightly
def test_what_a_swap_has_taken_is_given_back_after_its_trial(broker: Mosquitto, tmp_path: Path, home: Path):
    center = Center(tmp_path, broker.url, demo=True)
    try:
        with short_folder() as folder, Fleet(home, folder, broker, center) as box:
            process, before = psutil.Process(box.pid), fingerprint(box)
            wait_until(lambda: fingerprint(box) != before)
            assert box.speak().status_code == 200
            threads = process.num_threads()
            box.of.wait_for("edge: light serves")
            wait_until(lambda: process.num_threads() < threads)
            assert box.speak().status_code == 200
    finally:
        center.kill()
