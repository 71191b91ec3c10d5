"""Conversations: parts as HTTP requests would be, in order, ahead by a bounded lead, and gone at once when cancelled."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import AtCapacity, Draining, NoSpeakableText, ReaderStalled, UnknownVoice
from pipeline.types import SynthesisRequest
from serve.access.api_keys import Quota
from serve.access.caller import Caller
from serve.config.app_config import ConversationsConfig, LimitsConfig
from serve.errors import ApiError
from serve.observability.reply_stats import Outcome
from serve.speech.conversation import conversation
from serve.speech.conversation.context import ContextSettings
from serve.speech.conversation.conversation import Conversation, Conversations
from serve.speech.conversation.conversation_events import (
    ContextCancelled,
    ContextClosed,
    ContextFailed,
    ConversationEvent,
    PartSkipped,
    PartSpoken,
)
from serve.speech.events import Audio, Finished, Started
from serve.speech.job import RequestContext
from serve.speech.schemas.speech import SpeechBody
from serve.speech.speak import ClientLeft, open_speech
from tests.support.effort import examples
from tests.support.fakes import RecordingObserver, Speaker, make_speech_services
from tests.support.waiting import until

PCM = {"response_format": "pcm", "seed": 7}


class Observer(RecordingObserver):
    def __init__(self) -> None:
        super().__init__()
        self.unheard: list[int] = []

    def interrupted(self, unheard_steps: int) -> None:
        self.unheard.append(unheard_steps)


class Room:
    """One conversation over a Speaker, and everything it said."""

    def __init__(self, speaker: Speaker | None = None, config: ConversationsConfig | None = None, **parts: Any) -> None:
        self.speaker, self.observer = speaker or Speaker(chunks=2), Observer()
        self.services = make_speech_services(self.speaker, **{"observer": self.observer, **parts})
        self.events: list[ConversationEvent] = []
        self.refusal: Exception | None = None
        self.config = config or ConversationsConfig()
        self.conversation = Conversation(self.services, self.config, RequestContext("talk"), self.emit)

    async def emit(self, event: ConversationEvent) -> None:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.events.append(event)

    def open(self, name: str = "a", **settings: Any) -> None:
        speech = {**PCM, **settings.pop("speech", {})}
        self.conversation.open(name, ContextSettings(speech, settings.pop("lead_s", 60.0), **settings))

    async def say(self, *texts: str, name: str = "a", closes: bool = False) -> None:
        """Adds parts; closes the context after them if asked to."""
        for text in texts:
            await self.conversation.add(name, text)
            self.conversation.flush(name)
        if closes:
            self.conversation.close(name)

    async def over(self, *names: str) -> None:
        await until(
            lambda: set(names) <= {event.context for event in self.events if not isinstance(event, PartSpoken | PartSkipped)}
        )

    def audio(self, name: str = "a") -> bytes:
        spoken = [entry.event for entry in self.events if isinstance(entry, PartSpoken) and entry.context == name]
        return b"".join(event.data for event in spoken if isinstance(event, Audio))

    @property
    def texts(self) -> list[str]:
        return [request.text for request in self.speaker.requests]

    @property
    def is_quiet(self) -> bool:
        return self.speaker.opened == self.speaker.closed and self.services.admission.in_flight == 0


@asynccontextmanager
async def talking(room: Room | None = None) -> AsyncIterator[Room]:
    """A conversation that ends with the block, and leaves nothing behind."""
    room = room or Room()
    try:
        yield room
    finally:
        await room.conversation.stop()
    assert len(asyncio.all_tasks()) == 1
    assert room.is_quiet


def talk(work: Callable[[Room], Coroutine[Any, Any, None]]) -> Room:
    room = Room()

    async def run() -> None:
        async with talking(room):
            await work(room)

    asyncio.run(run())
    return room


def http_bytes(text: str, **fields: Any) -> bytes:
    """The body of the HTTP reply."""

    async def ask() -> bytes:
        data = b""
        with open_speech(make_speech_services(Speaker(chunks=2)), RequestContext("http")) as speech:
            async for event in speech.speak(await speech.accept(SpeechBody(input=text, **PCM, **fields))):
                data += event.data if isinstance(event, Audio) else b""
        return data

    return asyncio.run(ask())


@settings(max_examples=examples(30))
@given(text=st.text("ab .!?你。\n", max_size=40).map("First words of it. ".__add__), data=st.data())
def test_the_audio_depends_on_the_text_and_its_flushes_alone(text, data):
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    sentences = data.draw(st.booleans())

    def speak(pieces: list[str]) -> Room:
        async def work(room: Room) -> None:
            room.open(sentences=sentences)
            for piece in pieces:
                await room.conversation.add("a", piece)
                await asyncio.sleep(0)
            room.conversation.close("a")
            await room.over("a")

        return talk(work)

    whole = speak([text])
    cut = speak([text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)])
    assert cut.texts == whole.texts
    assert cut.audio() == whole.audio()
    assert sentences or whole.audio() == http_bytes(text)


async def test_a_context_says_what_it_speaks_in_order():
    async with talking() as room:
        room.open()
        await room.say("One. ")
        room.conversation.flush("a")
        await room.conversation.add("a", "  Two.")
        room.conversation.close("a")
        await room.over("a")
    kinds = [type(event.event if isinstance(event, PartSpoken) else event) for event in room.events]
    assert kinds == [Started, Audio, Audio, Finished] * 2 + [ContextClosed]
    assert room.texts == ["One. ", "  Two."]
    assert [request.request_id for request in room.speaker.requests] == ["talk.0.0", "talk.0.1"]
    assert room.events[4].part.start == 5
    assert room.events[-1] == ContextClosed("a", pytest.approx(0.8))
    assert [stats.outcome for stats in room.observer.replies] == [Outcome.DONE] * 2


async def test_contexts_are_spoken_at_once_and_do_not_mix():
    async with talking(Room(Speaker(chunks=3, pause_s=0.01))) as room:
        for number in range(8):
            room.open(f"c{number}", speech={"seed": number})
            await room.conversation.add(f"c{number}", "Some words.")
        for number in range(8):
            room.conversation.close(f"c{number}")
        await room.over(*(f"c{number}" for number in range(8)))
    for number in range(8):
        async with talking(Room(Speaker(chunks=3))) as alone:
            await say_all(alone, seed=number)
        assert room.audio(f"c{number}") == alone.audio()
    assert max(room.observer.in_flight) == 8


async def say_all(room: Room, seed: int) -> None:
    room.open(speech={"seed": seed})
    await room.conversation.add("a", "Some words.")
    room.conversation.close("a")
    await room.over("a")


async def test_what_has_nothing_to_say_is_skipped_and_the_context_goes_on():
    class Wordless(Speaker):
        async def stream(self, request: SynthesisRequest):
            if "..." in request.text:
                raise NoSpeakableText("nothing")
            async for chunk in super().stream(request):
                yield chunk

    async with talking(Room(Wordless(chunks=1))) as room:
        room.open()
        await room.say("...", "Words.", closes=True)
        await room.over("a")
    skipped, started, *_ = room.events
    assert isinstance(skipped, PartSkipped)
    assert skipped.part.text == "..."
    assert (started.number, started.part.start) == (1, 3)


async def test_a_failure_ends_its_context_alone():
    async with talking(Room(Speaker(chunks=2, fails_at=1))) as room:
        for name in ("a", "b"):
            room.open(name, speech={} if name == "b" else {"priority": None})
            await room.conversation.add(name, "Some words. ")
        room.conversation.flush("a")
        await room.over("a")
        room.speaker.fails_at = None
        room.conversation.close("b")
        with pytest.raises(ApiError, match="no context"):
            await room.conversation.add("a", "more")
        await room.over("b")
        room.open("a")
    failed = next(event for event in room.events if isinstance(event, ContextFailed))
    assert (failed.context, failed.number) == ("a", 0)
    assert any(isinstance(event, ContextClosed) and event.context == "b" for event in room.events)
    assert room.observer.replies[0].outcome is Outcome.CUT


@settings(max_examples=examples(30))
@given(after=st.integers(0, 12), played_s=st.none() | st.floats(0, 3))
def test_a_cancel_at_any_point_leaves_nothing_behind(after, played_s):
    async def work(room: Room) -> None:
        room.open()
        await room.say("One two. ", "Three four. ")
        await until(lambda: len(room.events) >= min(after, 8))
        if isinstance(room.events[-1] if room.events else None, ContextClosed):
            return
        await room.conversation.cancel("a", played_s)
        assert room.is_quiet
        count = len(room.events)
        await asyncio.sleep(0.005)
        assert len(room.events) == count, "nothing follows"
        assert isinstance(room.events[-1], ContextCancelled)
        room.open("a")

    room = talk(work)
    assert len(room.observer.unheard) == 1


async def test_an_interruption_says_what_was_heard():
    async with talking() as room:
        room.open()
        await room.say("One two three. ")
        await until(lambda: len(room.events) == 4)
        await room.conversation.cancel("a", 0.1)
    played = room.events[-1].played
    assert (played.played_s, played.characters, played.words, played.is_exact) == (0.1, 3, 1, False)
    assert room.observer.unheard == [played.unheard_steps] == [round(0.3 * 46.875)]


async def test_what_is_sent_and_still_playing_can_be_interrupted_once():
    async with talking() as room:
        await say_all(room, seed=1)
        await room.conversation.cancel("a", 0.1)
        with pytest.raises(ApiError, match="no context"):
            await room.conversation.cancel("a", 0.1)
    assert room.events[-1].played.played_s == 0.1
    assert room.events[-1].played.unheard_steps == round(0.3 * 46.875)


async def test_many_contexts_leave_no_more_than_a_few_behind():
    async with talking() as room:
        for number in range(300):
            room.open(f"c{number}")
            room.conversation.close(f"c{number}")
            for _ in range(4):
                await asyncio.sleep(0)
        assert len(room.conversation._contexts) <= room.config.max_contexts


async def test_the_next_part_waits_until_no_more_than_the_lead_is_unplayed():
    async with talking() as room:
        room.open(lead_s=0.25)
        await room.say("One.", "Two.", "Three.")
        await until(lambda: len(room.events) >= 4)
        assert room.texts == ["One."], "0.4 s were sent, and 0.25 s may be ahead"
        await until(lambda: len(room.texts) == 2)
        room.conversation.leave()
        room.conversation.close("a")
        await room.over("a")
        assert room.texts == ["One.", "Two.", "Three."], "a stop of the replica does not wait for listeners"


async def test_a_pause_ends_a_part_if_the_context_says_so():
    async with talking() as room:
        room.open("a", pause_s=0.01)
        room.open("b")
        for name in ("a", "b"):
            await room.conversation.add(name, "Some words")
        await until(lambda: len(room.events) >= 4)
        assert {event.context for event in room.events} == {"a"}


async def test_draining_speaks_what_was_flushed_and_opens_nothing():
    async with talking() as room:
        room.open()
        await room.say("One.", "Two.")
        room.services.admission.close()
        room.conversation.leave()
        assert room.conversation.is_busy
        with pytest.raises(Draining):
            room.open("b")
        await until(lambda: not room.conversation.is_busy)
        assert room.texts == ["One.", "Two."]


async def test_limits_answer_in_words(monkeypatch):
    monkeypatch.setattr(conversation, "MAX_WAITING_CHARS", 10)
    config = ConversationsConfig.varied({"max_contexts": 2})
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ApiError, "at most 60", {"lead_s": 61.0}),
        (ApiError, "speed", {"speech": {"speed": 100}}),
        (UnknownVoice, "voice", {"speech": {"voice": "nobody"}}),
        (ApiError, "stream_format", {"speech": {"stream_format": "sse"}}),
        (ApiError, "SSML", {"speech": {"input_type": "ssml"}, "sentences": True}),
        (ApiError, "output_format", {"speech": {"output_format": "mp3_44100_128"}}),
    ]

    async with talking(Room(config=config)) as room:
        for kind, words, given_settings in wrong:
            with pytest.raises(kind, match=words):
                room.open(**{"lead_s": 1.0, **given_settings})
        room.open("a", lead_s=1.0)
        with pytest.raises(ApiError, match="is open"):
            room.open("a", lead_s=1.0)
        room.open("b", lead_s=1.0, speech={"input_type": "ssml"})
        for number in range(100):
            with pytest.raises(AtCapacity, match="contexts are open"):
                room.open(f"c{number}", lead_s=1.0)
        await room.conversation.add("a", "1234567")
        with pytest.raises(AtCapacity, match="were not taken"):
            await room.conversation.add("a", "89012")
        await room.conversation.add("a", "890")
        room.conversation.close("a")
        with pytest.raises(ApiError, match="takes no more text"):
            await room.conversation.add("a", "")
        await room.over("a")
        assert room.texts == ["1234567890"]


async def test_a_part_is_refused_as_its_request_would_be():
    async with talking(Room(limits=LimitsConfig(max_text_chars=20))) as room:
        room.open("a")
        await room.conversation.add("a", "x" * 30)
        room.conversation.close("a")
        await room.over("a")
        (failed,) = room.events
        assert "max_text_chars" in str(failed.error)


async def test_parts_are_charged_and_end_when_the_quota_is_used_up():
    room = Room()
    caller = Caller("some-key", quota=Quota(characters_a_day=7))
    room.conversation = Conversation(room.services, room.config, RequestContext("talk", caller), room.emit)

    async with talking(room) as room:
        room.open("a")
        await room.say(*["Hello"] * 3)
        await room.over("a")
    assert room.texts == ["Hello"]
    assert room.events[-1].error.spec.code == "quota_exceeded"


@pytest.mark.parametrize("refusal", [ClientLeft(), ReaderStalled("reads nothing")])
async def test_a_client_that_cannot_be_written_to_ends_its_conversation(refusal):
    async with talking(Room(Speaker(chunks=None))) as room:
        room.open()
        await room.conversation.add("a", "One.")
        room.refusal = refusal
        room.conversation.close("a")
        await until(lambda: room.conversation.broken is not None)
        assert room.conversation.broken is refusal


async def test_a_replica_has_room_for_so_many_sockets():
    async with talking() as room:
        conversations = Conversations(ConversationsConfig(max_sockets=1))
        with conversations.joined(room.conversation):
            assert (conversations.open_now, conversations.busy) == (1, 0)
            with pytest.raises(AtCapacity, match="max_sockets"), conversations.joined(Room().conversation):
                pass
            room.open()
            await room.say("One.")
            assert conversations.busy == 1
            conversations.leave()
            assert room.conversation.leaving.is_set()
            await until(lambda: not conversations.busy)
        assert conversations.open_now == 0
        with pytest.raises(Draining), conversations.joined(room.conversation):
            pass
