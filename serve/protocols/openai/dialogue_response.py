"""Dialogue response: the HTTP reply to a dialogue, with its voices levelled, as audio or as a zip of stems.

In:    a POST /v1/audio/dialogue, the Services
Out:   what a request for speech gets, or a zip
Never: another way to speak than a text of one voice has
"""

from dataclasses import replace

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from pipeline.audio.formats import audio_format
from pipeline.types import SynthesisRequest
from serve.errors import bad_request
from serve.http.connection import Connection
from serve.http.middleware import caller_of
from serve.http.speech_response import SpeechResponse, check_resumable, unless_the_client_leaves, write_reply, writer_for
from serve.http.speech_writers import SpeechWriter
from serve.protocols.openai.stems_writer import StemsWriter
from serve.speech.dialogue import levelled
from serve.speech.job import SpeechJob
from serve.speech.schemas.base import read_body
from serve.speech.schemas.dialogue_schemas import DialogueBody
from serve.speech.schemas.speech import PostBody
from serve.speech.speak import ClientLeft, SpeechSession


class DialogueResponse(SpeechResponse):
    """Receives a dialogue and sends its audio."""

    async def _reply(self, speech: SpeechSession, connection: Connection, receive: Receive) -> None:
        try:
            raw, body = await self._services.bodies.read_json(
                self._request, lambda raw: (raw, read_body(DialogueBody, raw).settled())
            )
        except ClientDisconnect:
            raise ClientLeft from None
        accept, levels = self._request.headers.get("accept", ""), is_levelled(body)
        if body.stems:
            check_stems(body, accept=accept)
            body = body.model_copy(update={"stream": False})
        writer = None if body.stems else writer_for(body, connection, accept=accept)
        check_resumable(speech, writer)
        job = await speech.accept(body, raw)
        await unless_the_client_leaves(receive, self._speak(speech, job, connection, writer, levels=levels))

    async def _speak(
        self, speech: SpeechSession, job: SpeechJob, connection: Connection, writer: SpeechWriter | None, *, levels: bool
    ) -> None:
        """Speaks a job. Without a writer it becomes a zip of stems."""
        if levels:
            job = levelled(job, await self._gains_db(job.request))
        if writer is None:
            writer = StemsWriter(connection, job.audio)
            job = replace(job, audio=audio_format("pcm", job.audio.sample_rate), streamed=True)
        await write_reply(speech, job, writer, connection)

    async def _gains_db(self, request: SynthesisRequest) -> dict[str, float]:
        """Returns the gains of a dialogue's voices, whose measures its caller pays."""
        version = self._services.speech.models.rollout.versions[request.model]
        voices, caller = {turn.voice for turn in request.turns}, caller_of(self._request)
        return await self._services.voices.loudness.gains_db(voices, version, request.scheduling, caller)


def check_stems(body: DialogueBody, *, accept: str) -> None:
    """Checks that nothing is asked for that a zip cannot be.

    Raises:
        ApiError: 400
    """
    if body.stream_format == "sse" or "text/event-stream" in accept:
        raise bad_request("conflicting_fields", "stems are a zip, not events: leave stream_format out", param="stream_format")
    if body.stream and "stream" in body.model_fields_set:
        message = "stems are known once the whole dialogue is spoken: leave stream out"
        raise bad_request("conflicting_fields", message, param="stream")


def is_levelled(body: DialogueBody) -> bool:
    """True if voices are brought to one loudness here; `post.loudness_lufs` asks the pipeline for the same.

    Raises:
        ApiError: 400, both are asked for.
    """
    has_target = isinstance(body.post, PostBody) and body.post.loudness_lufs is not None
    if has_target and body.level and "level" in body.model_fields_set:
        message = "post.loudness_lufs brings all voices to that loudness: leave level out"
        raise bad_request("conflicting_fields", message, param="level")
    return body.level and not has_target
