"""Resuming: a reply goes on, at any replica, at the byte where its client lost it.

In:    where a client wants a reply to go on, its body again
Out:   the continuation of the reply; a token for every new one; the bytes that the client does not have
Owns:  nothing that outlives a request
Never: bytes of another build, voice or version behind those that the client has; another key's reply; HTTP, Ray

The bytes of a reply follow from its body and its Origin. So it is made again, and what was sent is left out.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from pipeline.types import CacheControl, SchedulingParams
from serve.access.idempotency import Idempotency
from serve.access.resume_tokens import ANEW, Continuation, Origin, ResumeTokens, Resumption, not_resumable
from serve.errors import ApiError, bad_request
from serve.speech.events import Resumed
from serve.speech.job import RequestContext, SpeechJob
from serve.speech.schemas.speech import SpeechBody

CHANGED = f"the rest of this reply would be other audio: {ANEW}"


class Resuming:
    """Issues the tokens of replies, and finds their origins again."""

    def __init__(
        self, tokens: ResumeTokens, idempotency: Idempotency, build: Callable[[str], str], engine: Callable[[str], str]
    ) -> None:
        """
        Args:
            build: version of the model -> hash of the code, libraries and settings of this replica that make its bytes.
            engine: version of the model -> fingerprint of its engine at present.
        """
        self._tokens = tokens
        self._idempotency = idempotency
        self._build = build
        self._engine = engine

    async def continuation(self, body: SpeechBody, context: RequestContext) -> Continuation | None:
        """Returns the reply that a request goes on with; None: it is a new request.

        Raises:
            ApiError: 409, it was made from another body; 412, it is not known or too old.
        """
        if context.resumes is None:
            return None
        tenant, key, token = context.caller.id, context.idempotency_key, context.resumes.token
        stored = await self._idempotency.token(tenant, key) if token is None and key is not None else None
        if token is None and stored is None:
            raise not_resumable("resume_unknown", f"no reply of this Idempotency-Key is known here: {ANEW}")
        continuation = self._tokens.read(tenant, token or stored or "", is_kept=token is None)
        if continuation.origin.body != self._hash_of(body):
            raise bad_request("resume_mismatch", "this reply was made from another body: send the same one", status=409)
        return continuation

    def check(self, origin: Origin, body: SpeechBody, job: SpeechJob) -> None:
        """Checks that a job would make the bytes of an origin.

        Raises:
            ApiError: 412
        """
        now = self._origin(body, job, origin.engine)
        if now.build != origin.build:
            raise not_resumable("resume_changed", f"the service was updated since: {CHANGED}")
        if now != origin:
            raise not_resumable("resume_changed", f"a voice, a lexicon or a default has changed since: {CHANGED}")

    def check_engine(self, origin: Origin, generated_by: set[str]) -> None:
        """Checks that the engines of what was made so far are the one of an origin; for cached steps that is the present one.

        Raises:
            ApiError: 412
        """
        if (generated_by or {self._engine(origin.model)}) != {origin.engine}:
            raise not_resumable("resume_changed", f"the model was updated since: {CHANGED}")

    async def token_for(
        self, body: SpeechBody, job: SpeechJob, context: RequestContext, engines: set[str], *, is_paid: bool
    ) -> str | None:
        """Returns the token of a reply that begins; None: it cannot be resumed.

        Args:
            engines: fingerprints of those that generated so far; empty: its steps come from the cache.
            is_paid: as for Continuation.
        """
        engine = self._engine(job.request.model) if not engines else engines.pop() if len(engines) == 1 else ""
        if not self._tokens.ttl_s or not self._tokens.can_sign or not engine:
            return None
        origin = self._origin(body, job, engine)
        token = self._tokens.issue(context.caller.id, origin, is_paid=is_paid)
        key = context.idempotency_key
        if key is not None:
            await self._idempotency.keep_token(context.caller.id, key, token, self._tokens.digest("origin", repr(origin)))
        return token

    def _origin(self, body: SpeechBody, job: SpeechJob, engine: str) -> Origin:
        request = job.request
        scheduling = SchedulingParams(
            latency=request.scheduling.latency, skipped_chunk_sizes=request.scheduling.skipped_chunk_sizes
        )
        bare = replace(
            request, request_id="", strict=False, scheduling=scheduling, timeout_s=0.0, cache=CacheControl(), warnings=()
        )
        return Origin(
            seed=request.sampling.seed,
            model=request.model,
            degraded=tuple(map(str, job.degraded)),
            body=self._hash_of(body),
            resolved=self._tokens.digest("resolved", repr((bare, job.audio, job.streamed))),
            build=self._build(request.model),
            engine=engine,
        )

    def _hash_of(self, body: SpeechBody) -> str:
        return self._tokens.digest("body", body.model_dump_json())


class KnownPart:
    """The first bytes of a reply, which its client has."""

    def __init__(self, resumption: Resumption) -> None:
        self._resumption = resumption
        self._remaining = resumption.first
        self._digest = hashlib.sha256()

    def rest_of(self, data: bytes) -> bytes:
        """Returns what the client does not have of the next piece of the reply.

        Raises:
            ApiError: 412, it has other bytes.
        """
        known, rest = data[: self._remaining], data[self._remaining :]
        self._remaining -= len(known)
        self._digest.update(known)
        if rest:
            self._check()
        return rest

    def resumed(self, *, is_all: bool = False) -> Resumed:
        """Returns what is left out; at the end of the reply with `is_all`.

        Raises:
            ApiError: 416, nothing follows, or the reply is shorter than what the client has; 412, it has other bytes.
        """
        if self._remaining or (is_all and self._resumption.is_range):
            raise unsatisfiable(self._resumption.first - self._remaining)
        self._check()
        return Resumed(self._resumption.first, self._resumption.seq, self._digest)

    def _check(self) -> None:
        if not self._digest.hexdigest().startswith(self._resumption.sha256):
            raise not_resumable("resume_changed", f"the bytes that were received are not those of this reply: {CHANGED}")


def unsatisfiable(size: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """Returns the refusal of a range behind the end of a reply of this size [bytes].

    Args:
        headers: that the reply has beside Content-Range.
    """
    error = bad_request(
        "range_not_satisfiable", f"the reply has {size} bytes, and nothing behind them", param="Range", status=416
    )
    error.headers.update({**(headers or {}), "Content-Range": f"bytes */{size}"})
    return error
