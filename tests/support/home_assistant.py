"""Home Assistant's own ways of reading and writing Wyoming, as its integration has them."""

import asyncio
import io
import wave

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice


async def home_assistant_reads(port: int, message: str, voice: SynthesizeVoice | None) -> bytes | None:
    """As its integration speaks a message at once: until audio-stop, into a WAV file; None: the connection was lost."""
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Synthesize(text=message, voice=voice).event())
        with io.BytesIO() as wav_io:
            wav_writer: wave.Wave_write | None = None
            while True:
                event = await client.read_event()
                if event is None:
                    return None
                if AudioStop.is_type(event.type):
                    break
                if AudioChunk.is_type(event.type):
                    chunk = AudioChunk.from_event(event)
                    if wav_writer is None:
                        wav_writer = wave.open(wav_io, "wb")  # noqa: SIM115  # as it does
                        wav_writer.setframerate(chunk.rate)
                        wav_writer.setsampwidth(chunk.width)
                        wav_writer.setnchannels(chunk.channels)
                    wav_writer.writeframes(chunk.audio)
            if wav_writer is not None:
                wav_writer.close()
            return wav_io.getvalue()


async def home_assistant_streams(port: int, pieces: list[str], voice: SynthesizeVoice | None) -> tuple[int, bytes]:
    """As its integration speaks a message that is still written: headers that it makes, and audio until it has stopped."""
    client = AsyncTcpClient("127.0.0.1", port)
    await client.connect()

    async def write() -> None:
        await client.write_event(SynthesizeStart(voice=voice).event())
        message = ""
        for piece in pieces:
            message += piece
            await client.write_event(SynthesizeChunk(text=piece).event())
            await asyncio.sleep(0)
        await client.write_event(Synthesize(text=message, voice=voice).event())  # for services that read no pieces
        await client.write_event(SynthesizeStop().event())

    writing = asyncio.create_task(write())
    headers, audio = 0, b""
    try:
        while event := await client.read_event():
            if AudioStart.is_type(event.type):
                headers += 1
            elif AudioChunk.is_type(event.type):
                audio += AudioChunk.from_event(event).audio
            elif SynthesizeStopped.is_type(event.type):
                break
    finally:
        await writing
        await client.disconnect()
    return headers, audio
