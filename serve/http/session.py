"""Session: what a protocol over a WebSocket has to say for itself; the socket around it is the same for all of them.

In:    frames, ConversationEvents, errors
Out:   calls of a Conversation; messages
Never: a socket
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from serve.speech.conversation.conversation import Conversation
from serve.speech.conversation.conversation_events import ConversationEvent

Message = dict[str, Any]


class Session(Protocol):
    """One client's end of a protocol."""

    idle_s: float
    """time without a message and without speech after which the socket is closed [s]"""
    idle_code: int
    """close code for that"""
    over: tuple[int, str] | None
    """set once the protocol says that the socket is to be closed: the code and why"""

    @property
    def refuses_per_context(self) -> bool:
        """Whether a client that is refused has to be told about the context that its first message names."""
        ...

    def begin(self, conversation: Conversation) -> Message | None:
        """Checks what the address and the headers say, before the first message. Returns what greets the client; None: nothing.

        Raises:
            InvalidRequest, ApiError: the socket is refused.
        """
        ...

    async def obey(self, frame: str, conversation: Conversation) -> Message | Sequence[Message] | None:
        """Does what a message says. Returns the messages that confirm it; None: nothing does.

        Raises:
            SynthesisError, ApiError: it had no effect, or the socket is to be closed; `refusal` says it.
        """
        ...

    def messages(self, event: ConversationEvent) -> Iterator[Message | bytes]:
        """Yields the messages of an event; bytes are sent in a binary frame."""
        ...

    def refusal(self, error: Exception, frame: str | None) -> Message:
        """Returns the message about a refused frame that is text, or about a refused socket."""
        ...

    def farewell(self) -> Message | None:
        """Returns what is said when the service is about to stop; None: the protocol has no such message."""
        ...
