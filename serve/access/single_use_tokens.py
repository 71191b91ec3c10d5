"""Single-use tokens: what a browser opens one socket or sends one request with, in place of a key that its page must not know.

In:    the id of a key; later the token
Out:   a token; the id again, once; a 401 for a token that is used, too old, or not ours
Owns:  nothing: the token is signed, and which are used is remembered where idempotency keys are, in bounded shares of the keys
Never: a key; a token in an error or a log
"""

import hmac
import secrets
import time
from collections.abc import Callable

from serve.access.idempotency import Idempotency
from serve.access.refusals import unauthorised
from serve.access.resume_tokens import ResumeTokens
from serve.errors import ApiError

TTL_S = 900
"""as long as ElevenLabs' tokens live"""
MOST_CHARACTERS = 256
_PURPOSE = "single-use"


def has_form_of_token(text: str) -> bool:
    """Returns True for what may be a token; whether it is one, `key_id` says."""
    return text.count(".") == 3


class SingleUseTokens:
    """Tokens `<id>.<until>.<drawn>.<signature>`, good on every replica that shares the secret."""

    def __init__(self, signer: ResumeTokens, used: Idempotency, *, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            signer: has the secret of all replicas.
            used: remembers what was claimed, for all replicas where they share a store.
            clock: seconds since 1970.
        """
        self._signer = signer
        self._used = used
        self._clock = clock

    def issue(self, key_id: str, ttl_s: float = TTL_S) -> str:
        """Returns a new token of a key.

        Args:
            ttl_s: how long it lives, up to TTL_S [s].

        Raises:
            StoreUnavailable: the secret is not known yet.
        """
        content = f"{key_id}.{int(self._clock() + min(ttl_s, TTL_S))}.{secrets.token_urlsafe(12)}"
        return f"{content}.{self._signer.digest(_PURPOSE, content)}"

    def key_id(self, token: str) -> str:
        """Returns the key that a token stands for, which may be used already.

        Raises:
            ApiError: 401
            StoreUnavailable: the secret is not known yet.
        """
        content, _, signature = token[:MOST_CHARACTERS].rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signer.digest(_PURPOSE, content).encode()):
            raise invalid_token()
        key_id, until, _ = content.split(".")
        if int(until) < self._clock():
            raise invalid_token()
        return key_id

    async def use(self, token: str) -> None:
        """Uses a good token up.

        Raises:
            ApiError: 401, it was used before.
        """
        if not await self._used.claim_use(self.key_id(token), token):
            raise invalid_token()


def invalid_token() -> ApiError:
    """Returns the refusal of a token that opens nothing."""
    message = "this token is used, too old, or of another service: fetch a new one for each socket and each request"
    return unauthorised("invalid_single_use_token", message)
