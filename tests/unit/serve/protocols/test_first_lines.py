"""The first requests that other servers' documentation shows, as they are printed there: only the address changes.

Clients that are packages are run for real in test_foreign_clients.py; these have none, or are too large for a test.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.support.fakes import Speaker, make_services, shipped_library, shipped_models
from tests.support.live_server import Live, serving

SPEECH = "/v1/audio/speech"
CAPTIONED = "/dev/captioned_speech"
TWELVE_HZ = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    # documentation of whom -> path and body
    "OpenAI": (
        SPEECH,
        {"model": "gpt-4o-mini-tts", "input": "Today is a wonderful day!", "voice": "coral", "instructions": "Cheer."},
    ),
    "OpenAI, curl": (SPEECH, {"model": "tts-1", "input": "The quick brown fox.", "voice": "alloy"}),
    "OpenAI, dated": (SPEECH, {"model": "tts-1-hd-1106", "input": "The quick brown fox.", "voice": "Nova"}),
    "Azure OpenAI": (
        "/openai/deployments/tts/audio/speech?api-version=2025-04-01-preview",
        {"model": "tts-1-hd", "input": "I am a model.", "voice": "alloy"},
    ),
    "Azure OpenAI, version 1": ("/openai/v1/audio/speech", {"model": "tts-hd", "input": "I am a model.", "voice": "alloy"}),
    "Kokoro-FastAPI": (
        SPEECH,
        {"model": "kokoro", "input": "Hello world!", "voice": "af_bella", "response_format": "mp3", "speed": 1.0},
    ),
    "Kokoro-FastAPI, mixture": (SPEECH, {"model": "kokoro", "voice": "af_sky+af_bella", "input": "Hello world!"}),
    "Kokoro-FastAPI, weights": (SPEECH, {"model": "kokoro", "voice": "af_bella(2)+af_sky(1)", "input": "Hello world!"}),
    "Kokoro-FastAPI, stream": (
        SPEECH,
        {
            "model": "kokoro",
            "input": "Hello world!",
            "voice": "af_heart",
            "response_format": "pcm",
            "stream": True,
            "lang_code": "a",
        },
    ),
    "Kokoro-FastAPI, captions": (
        CAPTIONED,
        {
            "model": "kokoro",
            "input": "Hello world!",
            "voice": "af_bella",
            "speed": 1.0,
            "response_format": "mp3",
            "stream": False,
        },
    ),
    "speaches": (SPEECH, {"model": "speaches-ai/Kokoro-82M-v1.0-ONNX", "input": "Hello World!", "voice": "af_heart"}),
    "vLLM-Omni": (SPEECH, {"input": "Hello, how are you?", "voice": "vivian", "language": "English"}),
    "vLLM-Omni, all fields": (
        SPEECH,
        {
            "model": TWELVE_HZ,
            "input": "Hi.",
            "voice": "Ryan",
            "language": "Auto",
            "task_type": "CustomVoice",
            "instructions": None,
            "ref_audio": None,
            "ref_text": None,
            "speed": None,
            "response_format": "wav",
            "stream": None,
        },
    ),
    "SGLang-Omni": (
        SPEECH,
        {"model": "fishaudio/s2-pro", "input": "Hello.", "speaker": "vivian", "language": "Chinese", "seed": -1},
    ),
    "Orpheus": (
        SPEECH,
        {"model": "orpheus", "input": "Hello world! This is a test.", "voice": "tara", "response_format": "wav", "speed": 1.0},
    ),
    "edge-tts behind OpenAI's protocol": (
        SPEECH,
        {"model": "tts-1", "input": "Hello!", "voice": "en-US-AvaNeural", "response_format": "mp3", "speed": 1.0},
    ),
    "an open-loop benchmark": (
        SPEECH,
        {
            "model": TWELVE_HZ,
            "input": "One.",
            "voice": "vivian",
            "language": "English",
            "response_format": "pcm",
            "stream": True,
            "temperature": 0,
            "seed": 7,
        },
    ),
    "a language that is not spoken": (
        SPEECH,
        {"model": "kokoro", "input": "Hallo.", "voice": "af_heart", "language": "German"},
    ),
    "n8n": (SPEECH, {"model": "tts-1", "input": "Hello.", "voice": "alloy", "response_format": "MP3", "speed": None}),
    "Piper's server": ("/piper", {"text": "This is a test."}),
    "Piper's server, voice": ("/piper", {"text": "This is a test.", "voice": "en_US-lessac-medium"}),
    "Vapi": ("/vapi", {"message": {"type": "voice-request", "text": "Hello there.", "sampleRate": 24000, "timestamp": 1}}),
    "Deepgram": ("/v1/speak?model=aura-2-thalia-en", {"text": "Hello, how can I help you today?"}),
    "Deepgram, telephony": ("/v1/speak?model=aura-2-thalia-en&encoding=mulaw&container=wav", {"text": "Hello."}),
    "Deepgram, raw telephony": (
        "/v1/speak?model=aura-asteria-en&encoding=mulaw&sample_rate=8000&container=none",
        {"text": "Hello."},
    ),
    "Deepgram, no model": ("/v1/speak", {"text": "Hello, how can I help you today?"}),
    "Deepgram, opus": ("/v1/speak?model=aura-2-zeus-en&encoding=opus&container=ogg&bit_rate=32000", {"text": "Hello."}),
    "Deepgram, Flux": ("/v2/speak?model=flux-alexis-en&expressivity=1", {"text": "Hello."}),
    "ElevenLabs": (
        "/v1/text-to-speech/JBFqnCBsd6RMkjVDRZzb?output_format=mp3_44100_128",
        {"text": "The first move is what sets everything in motion.", "model_id": "eleven_multilingual_v2"},
    ),
    "ElevenLabs, settings": (
        "/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM/stream",
        {
            "text": "Hello.",
            "model_id": "eleven_flash_v2_5",
            "language_code": "de",
            "voice_settings": {"stability": 0.5, "style": None},
        },
    ),
    "ElevenLabs, dialogue": (
        "/v1/text-to-dialogue",
        {
            "inputs": [
                {"text": "[giggling] Knock knock", "voice_id": "JBFqnCBsd6RMkjVDRZzb"},
                {"text": "Who?", "voice_id": "Aw4FAjKCGjjNkVhN1Xmq"},
            ]
        },
    ),
}


@pytest.fixture(scope="module")
def shipped() -> Iterator[Live]:
    """A server with the voices, and the names of models, that are shipped."""
    with serving(make_services(Speaker(), voice_id=shipped_library().canonical, models=shipped_models())) as live:
        yield live


@pytest.mark.parametrize("whose", SHAPES)
def test_the_first_request_of_the_documentation_speaks(shipped: Live, whose: str):
    path, body = SHAPES[whose]
    reply = requests.post(shipped.url + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert len(reply.content) > 2_000
    assert not {"voice", "model"} & set(reply.headers.get("X-Ignored-Fields", "").split(", "))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"input": "Hi.", "ref_audio": "https://example.com/a.wav", "ref_text": "Hello."}, "recording_not_supported"),
        ({"input": "Hi.", "references": [{"audio_path": "a.wav", "text": "Hello."}]}, "recording_not_supported"),
        ({"input": "Hi.", "voice": "somebody-else"}, "voice_not_found"),
        ({"input": "Hi.", "model": "somebody/else"}, "model_not_found"),
    ],
)
def test_another_persons_voice_never_speaks_in_silence(shipped: Live, body: dict[str, Any], code: str):
    assert requests.post(shipped.url + SPEECH, json=body, timeout=60).json()["error"]["code"] == code
