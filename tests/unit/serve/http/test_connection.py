"""Connection: what becomes of a reply whose client reads slowly."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DeadlineExceeded, EngineDead, ReaderStalled
from serve.config.app_config import LimitsConfig
from serve.http.connection import Connection, UnreadBytes
from serve.http.stalled_readers import PIECE_BYTES, LimitedSend, until_it_waits

LEAST = 10


class Socket:
    """ASGI's send; each message takes as many turns of the loop as it is told to, None for ever."""

    def __init__(self, *turns: int | None) -> None:
        self.turns = list(turns)
        self.messages: list[dict[str, Any]] = []
        self.sending = 0

    async def send(self, message: Any) -> None:
        assert self.sending == 0, "one message after the other"
        self.sending += 1
        try:
            turns = self.turns.pop(0) if self.turns else 0
            if turns is None:
                await asyncio.Event().wait()
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            self.messages.append(message)
        finally:
            self.sending -= 1

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def connect(socket: Socket, unread: UnreadBytes, **limits: float) -> Connection:
    config = LimitsConfig(**limits)
    return Connection(LimitedSend(socket.send, lambda: config.stall_timeout_s), config, unread)


async def reply(connection: Connection, *pieces: bytes, error: Exception | None = None) -> None:
    async with connection:
        await connection.begin({})
        for piece in pieces:
            await connection.write(piece)
            await asyncio.sleep(0)
        if error is not None:
            raise error
        await connection.end()


def ended_with_nothing_left(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def watched() -> None:
        await scenario()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())


@given(st.integers(0, 2**32), st.sampled_from([0, 8 * LEAST, 20 * LEAST, 100 * LEAST]))
def test_however_slow_its_reader_every_byte_is_sent_once_and_in_order(seed: int, capacity: int):
    draw, unread = random.Random(seed), UnreadBytes(capacity, least=LEAST)
    fullest = 0

    async def reader(number: int) -> None:
        nonlocal fullest
        socket = Socket(*(draw.choice([0, 0, 1, 3, 20]) for _ in range(30)))
        pieces = [draw.randbytes(draw.randrange(60)) for _ in range(draw.randrange(20))]
        connection = connect(socket, unread)
        async with connection:
            await connection.begin({"X-Number": str(number)})
            for piece in pieces:
                await connection.write(piece)
                fullest = max(fullest, unread.total)
                for _ in range(draw.choice([0, 0, 1, 5])):
                    await asyncio.sleep(0)
            await connection.end()
        kinds = [message["type"] for message in socket.messages]
        assert kinds == ["http.response.start"] + ["http.response.body"] * (len(kinds) - 1)
        assert [message.get("more_body") for message in socket.messages[1:]] == [True] * (len(kinds) - 2) + [False]
        assert socket.body == b"".join(pieces)

    async def replies() -> None:
        await asyncio.gather(*map(reader, range(4)))

    ended_with_nothing_left(replies)
    assert fullest <= capacity
    assert unread.total == 0


def test_a_client_that_reads_in_time_costs_no_task_and_holds_nothing():
    async def scenario() -> None:
        unread, socket = UnreadBytes(1000, least=LEAST), Socket()
        connection = connect(socket, unread)
        async with connection:
            await connection.begin({})
            for _ in range(5):
                await connection.write(b"some audio")
                assert len(asyncio.all_tasks()) == 1
                assert unread.total == 0
            await connection.end()

    ended_with_nothing_left(scenario)


def test_speech_goes_on_while_its_reader_waits_and_no_further_than_there_is_room():
    async def scenario() -> None:
        socket, unread = Socket(0, None), UnreadBytes(8 * 100, least=LEAST)
        connection, written = connect(socket, unread), 0

        async def speak() -> None:
            nonlocal written
            async with connection:
                await connection.begin({})
                while True:
                    await connection.write(bytes(30))
                    written += 1

        speaking = asyncio.create_task(speak())
        for _ in range(40):
            await asyncio.sleep(0)
        assert (written, unread.total) == (4, 100), "the one that is being sent, and three that fit into an eighth"
        speaking.cancel()  # as a client that leaves does
        await asyncio.wait((speaking,))
        assert unread.total == 0

    ended_with_nothing_left(scenario)


def test_a_reply_is_complete_before_its_bytes_are_sent():
    async def scenario() -> None:
        socket, unread, complete = Socket(0, 50), UnreadBytes(8 * 100, least=LEAST), asyncio.Event()
        connection = connect(socket, unread)
        connection.when_complete = complete.set

        speaking = asyncio.create_task(reply(connection, bytes(30)))
        await complete.wait()
        assert (socket.body, unread.total) == (b"", LEAST)
        await speaking
        assert (len(socket.body), unread.total) == (30, 0)

    ended_with_nothing_left(scenario)


def test_with_no_room_a_reply_is_complete_once_its_reader_has_it():
    async def scenario() -> None:
        socket, unread = Socket(0, 50, 50), UnreadBytes(0, least=LEAST)
        connection = connect(socket, unread)
        connection.when_complete = lambda: socket.messages.append({"type": "complete"})
        async with connection:
            await connection.begin({})
            await connection.write(bytes(30))
            assert len(socket.body) == 30
            await connection.end()
        assert [message["type"] for message in socket.messages[-2:]] == ["http.response.body", "complete"]

    ended_with_nothing_left(scenario)


def test_what_was_spoken_before_a_failure_is_sent_before_the_cut():
    async def scenario() -> None:
        socket, unread, complete = Socket(0, 20, 20), UnreadBytes(8 * 100, least=LEAST), asyncio.Event()
        connection = connect(socket, unread)
        connection.when_complete = complete.set
        with pytest.raises(EngineDead, match="in the middle"):
            await reply(connection, b"spoken ", b"before", error=EngineDead("in the middle"))
        assert (socket.body, unread.total, complete.is_set()) == (b"spoken before", 0, True)
        assert socket.messages[-1]["more_body"], "it has no end"

    ended_with_nothing_left(scenario)


@pytest.mark.parametrize(
    ("limits", "error"),
    [({"stall_timeout_s": 0.01}, ReaderStalled), ({"total_timeout_s": 0.01}, DeadlineExceeded)],
)
@pytest.mark.parametrize("capacity", [0, 8 * 100])
def test_a_reader_that_takes_nothing_or_takes_too_long_ends_the_reply(limits, error, capacity):
    async def scenario() -> None:
        socket, unread = Socket(0, None), UnreadBytes(capacity, least=LEAST)
        connection = connect(socket, unread, **limits)
        with pytest.raises(error, match=next(iter(limits))):
            await reply(connection, b"some audio")
        assert (unread.total, connection.is_broken) == (0, True)

    ended_with_nothing_left(scenario)


def test_what_send_raises_is_raised_by_what_is_written_next():
    async def scenario() -> None:
        async def send(message: Any) -> None:
            await asyncio.sleep(0)
            raise RuntimeError("no such message")

        connection = Connection(send, LimitsConfig(), UnreadBytes(8 * 100, least=LEAST))
        with pytest.raises(RuntimeError, match="no such message"):
            await reply(connection, b"some audio", b"and more")

    ended_with_nothing_left(scenario)


def test_a_large_body_is_sent_in_pieces():
    async def scenario() -> None:
        socket = Socket()
        connection = connect(socket, UnreadBytes(0))
        await reply(connection, bytes(2 * PIECE_BYTES + 1))
        assert [len(message["body"]) for message in socket.messages[1:]] == [PIECE_BYTES, PIECE_BYTES, 1, 0]

    ended_with_nothing_left(scenario)


def test_the_rest_of_an_awaitable_goes_on_in_another_task_and_can_be_cancelled():
    async def scenario() -> None:
        events: list[str] = []

        async def work(event: asyncio.Event) -> None:
            events.append("began")
            try:
                await event.wait()
                await asyncio.sleep(0)
                events.append("went on")
            finally:
                await asyncio.sleep(0)
                events.append("ended")

        async def of(awaitable: Any) -> None:
            await awaitable

        event = asyncio.Event()
        rest = until_it_waits(work(event))
        assert (rest is not None, events) == (True, ["began"])
        task = asyncio.create_task(of(rest))
        await asyncio.sleep(0)
        event.set()
        await task
        assert events == ["began", "went on", "ended"]

        events.clear()
        task = asyncio.create_task(of(until_it_waits(work(asyncio.Event()))))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert events == ["began", "ended"]

    ended_with_nothing_left(scenario)
