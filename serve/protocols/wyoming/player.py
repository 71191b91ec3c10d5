"""Wyoming player: writes events, and audio as events, to one client.

In:    Events, SpeechEvents
Out:   bytes
Owns:  the place in the audio of the present speech
Never: an endless wait for a client that reads nothing; a second audio-start in one speech
"""

import asyncio

from wyoming.audio import AudioChunk, AudioStop
from wyoming.event import Event, async_write_event

from pipeline.errors import ReaderStalled
from serve.protocols.wyoming.messages import CHANNELS, RATE, WIDTH, audio_start
from serve.speech.events import Audio, SpeechEvent, Started
from serve.speech.speak import ClientLeft

MOST_AUDIO_BYTES = 1 << 16
"""of one event: 1.4 s"""


class Player:
    """The service's end of one connection."""

    def __init__(self, writer: asyncio.StreamWriter, stall_timeout_s: float) -> None:
        self._writer = writer
        self._stall_s = stall_timeout_s
        self._writing = asyncio.Lock()
        self._has_begun = False
        self._sent_bytes = 0  # bytes

    @property
    def peer(self) -> str:
        """The address of the client."""
        address = self._writer.get_extra_info("peername")
        return str(address[0]) if address else ""

    def close(self) -> None:
        """Ends the stream."""
        self._writer.close()

    async def say(self, event: Event) -> None:
        """Sends an event.

        Raises:
            ClientLeft: the connection is closed.
            ReaderStalled: the client read nothing for limits.stall_timeout_s.
        """
        try:
            async with self._writing, asyncio.timeout(self._stall_s):
                await async_write_event(event, self._writer)
        except TimeoutError:
            raise ReaderStalled(f"the client read nothing for {self._stall_s:g} s (limits.stall_timeout_s)") from None
        except (OSError, RuntimeError):
            raise ClientLeft from None

    async def play(self, event: SpeechEvent) -> None:
        """Sends what an event adds to the audio.

        Raises:
            ClientLeft, ReaderStalled
        """
        match event:
            case Started():
                if not self._has_begun:
                    self._has_begun, self._sent_bytes = True, 0
                    await self.say(audio_start(event.job.ignored))
            case Audio():
                for place in range(0, len(event.data), MOST_AUDIO_BYTES):
                    data = event.data[place : place + MOST_AUDIO_BYTES]
                    await self.say(AudioChunk(RATE, WIDTH, CHANNELS, data, self._ms()).event())
                    self._sent_bytes += len(data)
            case _:
                pass

    async def stop(self) -> None:
        """Sends the end of the audio.

        Raises:
            ClientLeft, ReaderStalled
        """
        self._has_begun = False
        await self.say(AudioStop(self._ms()).event())

    def _ms(self) -> int:
        return 1000 * self._sent_bytes // (RATE * WIDTH)
