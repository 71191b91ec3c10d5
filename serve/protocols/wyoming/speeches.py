"""Wyoming speeches: a text that comes at once, and one that grows.

In:    the data of events
Out:   audio and its end, through a Player; the error that ends the connection
Owns:  one speech each
Never: a socket; the duplicate of a text that grew
"""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from wyoming.tts import SynthesizeStopped

from pipeline.errors import Draining, NoSpeakableText, ReaderStalled
from serve.access.caller import Caller
from serve.config.protocols import WyomingConfig
from serve.errors import ApiError
from serve.http.services import Services
from serve.protocols.wyoming.messages import SynthesizeData, SynthesizeStartData, speech_fields
from serve.protocols.wyoming.player import Player
from serve.speech.conversation.context import ContextSettings
from serve.speech.conversation.conversation import Conversation
from serve.speech.conversation.conversation_events import (
    ContextClosed,
    ContextFailed,
    ConversationEvent,
    PartSkipped,
    PartSpoken,
)
from serve.speech.job import RequestContext
from serve.speech.speak import ClientLeft, open_speech

CONTEXT = "speech"


@asynccontextmanager
async def admitted(services: Services, config: WyomingConfig, player: Player) -> AsyncIterator[RequestContext]:
    """Yields the context of a request by the client of a connection, which counts against the key of the listener meanwhile.

    Raises:
        ApiError: 401, 403, 429, 503
    """
    authenticator = services.authenticator
    async with AsyncExitStack() as stack:
        caller = authenticator.anonymous_caller
        try:
            key = authenticator.key_of_listener(config.key, player.peer, "wyoming.key")
            if key is not None:
                caller, _ = await stack.enter_async_context(authenticator.admitted(key, stream=True))
        except ApiError as refusal:
            services.speech.observer.rejected(refusal.spec.code)
            raise
        yield RequestContext(uuid.uuid4().hex, caller, player.peer)


class WholeSpeech:
    """A text that is spoken as one request."""

    is_audible = True

    def __init__(self, services: Services, config: WyomingConfig, player: Player, data: dict[str, Any]) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self._services = services
        self._config = config
        self._player = player
        self._data = data

    async def run(self) -> None:
        """Speaks it.

        Raises:
            ClientLeft, ReaderStalled: nothing can be written to the client.
            SynthesisError, ApiError
        """
        async with admitted(self._services, self._config, self._player) as request:
            with open_speech(self._services.speech, request) as speech:
                fields = speech_fields(self._data, SynthesizeData)
                job = await speech.accept(ContextSettings(fields, 0.0).body(fields["input"]))
                async with aclosing(speech.speak(job)) as events:
                    async for event in events:
                        await self._player.play(event)
        await self._player.stop()


class GrowingSpeech:
    """A text that is spoken while it grows."""

    def __init__(self, services: Services, config: WyomingConfig, player: Player, data: dict[str, Any]) -> None:
        self.opened = asyncio.Event()
        """set once text may be added"""
        self._services = services
        self._config = config
        self._player = player
        self._data = data
        self._conversation: Conversation | None = None
        self._has_text = False
        self._is_over = False
        self._error: Exception | None = None
        self._skipped: Exception = NoSpeakableText("there was no text between synthesize-start and synthesize-stop")

    @property
    def is_audible(self) -> bool:
        """True while text of it that is complete has not been spoken."""
        return self._conversation is not None and self._conversation.is_busy

    async def add(self, text: str) -> None:
        """Appends a piece of text.

        Raises:
            AtCapacity: too much text waits.
        """
        self._has_text = True
        if self._conversation is not None and self._conversation.is_open(CONTEXT):
            await self._conversation.add(CONTEXT, text)

    async def repeat(self, text: str) -> None:
        """Takes the whole text, which clients send behind the pieces for services that read none, if there were none."""
        if not self._has_text:
            await self.add(text)

    def close(self) -> None:
        """Ends the text."""
        if self._conversation is not None and self._conversation.is_open(CONTEXT):
            self._conversation.close(CONTEXT)

    async def run(self) -> None:
        """Speaks it.

        Raises:
            ClientLeft, ReaderStalled: nothing can be written to the client.
            Draining: the replica is about to stop, and what was complete of the text is spoken.
            SynthesisError, ApiError
        """
        conversations = self._services.conversations
        async with admitted(self._services, self._config, self._player) as request:
            conversation = Conversation(self._services.speech, conversations.config, request, self._emit)
            with conversations.joined(conversation):
                fields = speech_fields(self._data, SynthesizeStartData)
                is_ssml = fields.get("input_type") == "ssml"
                settings = ContextSettings(fields, conversations.config.lead_s, sentences=not is_ssml)
                conversation.open(CONTEXT, settings)
                self._conversation = conversation
                self.opened.set()
                try:
                    with request.caller.wakes(conversation.changed):
                        await self._until_over(conversation, request.caller)
                finally:
                    await conversation.stop()
        if self._error is not None:
            raise self._error

    async def _until_over(self, conversation: Conversation, caller: Caller) -> None:
        """Waits until the text is spoken, or has failed.

        Raises:
            Draining
            ApiError: 401, the key was revoked.
        """
        while not self._is_over:
            conversation.changed.clear()
            caller.check_key()
            if conversation.leaving.is_set() and not conversation.is_busy:
                raise Draining("this replica is about to stop, and the text has not ended: connect again")
            await conversation.changed.wait()

    async def _emit(self, event: ConversationEvent) -> None:
        try:
            match event:
                case PartSpoken():
                    await self._player.play(event.event)
                case PartSkipped():
                    self._skipped = event.error
                case ContextClosed(audio_s=0.0):
                    self._end(self._skipped)
                case ContextClosed():
                    await self._player.stop()
                    await self._player.say(SynthesizeStopped().event())
                    self._end(None)
                case ContextFailed():
                    self._end(event.error)
                case _:
                    pass
        except (ClientLeft, ReaderStalled) as error:
            self._end(error)
            raise

    def _end(self, error: Exception | None) -> None:
        self._error, self._is_over = error, True
        if self._conversation is not None:
            self._conversation.changed.set()
