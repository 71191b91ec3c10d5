"""Say resume: what was said in a conversation and heard of it, so that another socket can go on where one was lost.

In:    text, flushes and the end of it; the messages of the service
Out:   the same messages in every socket, from the first part on that was not heard to its end
Owns:  the text that is not spoken yet, the place in its audio
Never: audio that was heard before; a wait
"""

import base64
import hashlib
import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection


class Said:
    """One context. Text is added in one thread, messages are heard in another."""

    def __init__(self, speech: Mapping[str, Any]) -> None:
        """
        Args:
            speech: the fields of the message `open`.
        """
        self._speech = speech
        self._lock = threading.Lock()
        self._socket: ClientConnection | None = None
        self._text = ""  # from the first part on that was not heard to its end
        self._start = 0  # its place in the text of this socket's context
        self._flushes: list[int] = []  # places in _text
        self._is_closed = False
        self._part: list[int] | None = None  # that is being heard: its first character, and one past its last
        self._token = ""  # to go on with it
        self._resumes = False  # this socket begins with the rest of it
        self._received = 0
        self._digest = hashlib.sha256()

    @property
    def socket(self) -> ClientConnection:
        """The present one."""
        assert self._socket is not None, "it was connected"
        return self._socket

    @property
    def can_go_on(self) -> bool:
        """False in a part of which the service gave no token."""
        return self._part is None or bool(self._token)

    def add(self, piece: str) -> None:
        """Appends text."""
        with self._lock:
            self._text += piece
            self._say("text", text=piece)

    def flush(self) -> None:
        """Ends the present part."""
        with self._lock:
            self._flushes.append(len(self._text))
            self._say("flush")

    def close(self) -> None:
        """Ends the text."""
        with self._lock:
            self._is_closed = True
            self._say("close")

    def cancel(self) -> None:
        """Interrupts the speech."""
        with self._lock:
            self._say("cancel")

    def go_on(self, socket: ClientConnection) -> None:
        """Says in a new socket what has not been heard to its end."""
        with self._lock:
            self._socket, self._start, self._resumes = socket, 0, bool(self._token)
            known = {"token": self._token, "bytes": self._received, "sha256": self._digest.hexdigest()}
            self._say("open", **self._speech, **({"resume": known} if self._resumes else {}))
            at = 0
            for flush in self._flushes:
                self._say("text", text=self._text[at:flush])
                self._say("flush")
                at = flush
            self._say("text", text=self._text[at:])
            if self._is_closed:
                self._say("close")

    def heard(self, message: Mapping[str, Any]) -> bytes:
        """Takes a message; returns the audio that is in it."""
        with self._lock:
            match message["type"]:
                case "started":
                    self._part, self._token = message["characters"], message.get("resume", "")
                    self._forget(self._part[0])
                    if not self._resumes:
                        self._received, self._digest = 0, hashlib.sha256()
                    self._resumes = False
                case "audio":
                    audio = base64.b64decode(message["audio"])
                    self._received += len(audio)
                    self._digest.update(audio)
                    return audio
                case "finished" | "skipped":
                    self._forget(message.get("characters", self._part)[1])
                    self._part, self._token = None, ""
        return b""

    def _forget(self, place: int) -> None:
        """Drops the text before a place in this socket's context."""
        spoken, self._start = place - self._start, place
        self._text = self._text[spoken:]
        self._flushes = [flush - spoken for flush in self._flushes if flush > spoken]

    def _say(self, kind: str, **fields: Any) -> None:
        with suppress(ConnectionClosed):  # who hears notices it too, and says it in another one
            self.socket.send(json.dumps({"type": kind, **fields}))
