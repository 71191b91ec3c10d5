"""Batch lines: a file of requests, one a line, as OpenAI's batches have them, becomes a plan.

In:    the bytes of a JSONL file
Out:   JobPlan: a part for each line, and the answers to lines that cannot be spoken
Owns:  what a line may have
Never: a client's text in an error message; a whole file refused for the body of one line
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from pipeline.books.script import Part, Script
from pipeline.errors import SynthesisError, TextTooLong
from pipeline.types import MAX_SEED, Lane
from serve.config.jobs import JobsConfig
from serve.errors import ApiError, bad_request, to_api_error
from serve.jobs.body import NOT_OF_A_JOB
from serve.jobs.planning import JobPlan
from serve.jobs.record import Output
from serve.speech.job import RequestContext
from serve.speech.resolve import build_request, format_of, select_version
from serve.speech.schemas.base import Body, read_body
from serve.speech.schemas.speech import SpeechBody
from serve.speech.services import SpeechServices

ENDPOINT = "/v1/audio/speech"
MOST_LINES = 10_000
SAMPLE_RATE = 24_000  # of the sizes that are predicted

NOT_OF_A_LINE = tuple(name for name in (*NOT_OF_A_JOB, "timestamps") if name not in ("output_format", "stream"))
_FORMAT = ("input", "response_format", "output_format", "bitrate", "instructions")


class LineBody(Body):
    """One line of a file."""

    custom_id: str = Field(min_length=1, max_length=512)
    method: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What becomes of a line: a part, or the answer that it cannot be one."""

    part: Part
    note: dict[str, Any]
    refusal: dict[str, Any] | None = None


def plan_batch(content: bytes, context: RequestContext, speech: SpeechServices, config: JobsConfig) -> JobPlan:
    """Returns the plan of a file. It takes seconds for a long one: call it in a thread.

    Raises:
        ApiError, TextTooLong: the file is wrong as a whole; the message has the number of the line.
    """
    context.caller.lane(Lane.BULK)
    lines = list(read_lines(content))
    planned = [_planned(number, line, context, speech) for number, line in enumerate(lines)]
    parts = tuple(one.part for one in planned)
    first = next((one.part.own for one in planned if one.refusal is None), {"model": "", "voice": "", "seed": 0})
    shared = {"sample_rate": SAMPLE_RATE, **{name: first[name] for name in ("model", "voice", "seed")}}
    script = Script(parts, speech=shared, lines=tuple(one.note for one in planned))
    if script.characters > config.max_chars:
        message = f"the lines have {script.characters} characters; the limit is {config.max_chars} (jobs.max_chars)"
        raise TextTooLong(message, param="input_file_id")
    refused = {key: one.refusal for key, one in zip(script.keys, planned, strict=True) if one.refusal is not None}
    return JobPlan(script, Output(container="wav", sample_rate=SAMPLE_RATE), (), refused=refused)


def read_lines(content: bytes) -> Iterator[LineBody]:
    """Yields the lines of a file.

    Raises:
        ApiError: 400
    """
    raws = [(number, raw) for number, raw in enumerate(content.split(b"\n"), start=1) if raw.strip()]
    if not raws or len(raws) > MOST_LINES:
        message = f"the file has {len(raws)} lines; a batch has 1 to {MOST_LINES}"
        raise bad_request("out_of_range", message, param="input_file_id")
    seen: set[str] = set()
    for number, raw in raws:
        try:
            line = read_body(LineBody, raw)
        except ApiError as error:
            raise _wrong(number, error.message) from None
        if (line.method, line.url) != ("POST", ENDPOINT):
            raise _wrong(number, f"method is POST, and url is {ENDPOINT}")
        if line.custom_id in seen:
            raise _wrong(number, "its custom_id is that of a line before it")
        seen.add(line.custom_id)
        yield line


def answer_to(refusal: ApiError, request_id: str) -> dict[str, Any]:
    """Returns what a client is told about a line that is refused."""
    return {"status_code": refusal.spec.status, "body": refusal.body(request_id)}


def _wrong(number: int, what: str) -> ApiError:
    return bad_request("invalid_line", f"line {number} of the file: {what}", param="input_file_id")


def _planned(number: int, line: LineBody, context: RequestContext, speech: SpeechServices) -> _Planned:
    """Returns a line with everything settled that could change later."""
    try:
        body = read_body(SpeechBody, json.dumps(line.body).encode())
        found = next((name for name in NOT_OF_A_LINE if name in body.model_fields_set), None)
        if found is None and body.stream and "stream" in body.model_fields_set:
            found = "stream"
        if found is not None:
            raise bad_request("conflicting_fields", f"a line has no {found}: leave it out", param=found)
        seed = secrets.randbelow(MAX_SEED + 1) if body.seed is None else body.seed
        selection = select_version(body, context, speech)
        request, audio = build_request(selection, context, speech, seed=seed), format_of(selection.body)
    except (ApiError, SynthesisError) as error:
        answer = answer_to(to_api_error(error), context.request_id)
        return _Planned(Part("", own={"line": number}), {"custom_id": line.custom_id}, answer)
    kept = set(SpeechBody.model_fields) - {*NOT_OF_A_JOB, "timestamps", *_FORMAT}
    fields = body.model_dump(mode="json", by_alias=True, include=kept)
    settled = {"voice": request.voice, "model": request.model, "seed": seed, "sample_rate": audio.sample_rate}
    note = {"custom_id": line.custom_id, "container": audio.container, "kbps": audio.kbps}
    return _Planned(Part(body.input, own={**fields, **settled}), note)
