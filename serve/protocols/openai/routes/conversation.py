"""Conversation: the WebSocket on which a client writes text and receives its audio.

In:    a WebSocket
Out:   JSON messages
"""

from collections.abc import Iterator

from fastapi import APIRouter, WebSocket

from serve.access.api_keys import Scope
from serve.config.app_config import ConversationsConfig
from serve.http.close_codes import NORMAL
from serve.http.conversation_socket import ConversationSocket
from serve.http.conversation_writer import error_message, messages
from serve.http.middleware import request_id_of
from serve.http.route_access import requires
from serve.http.services import Services
from serve.http.session import Message
from serve.protocols.openai.schemas.conversation import (
    CancelMessage,
    CloseMessage,
    FlushMessage,
    OpenMessage,
    TextMessage,
    context_in,
    read_message,
)
from serve.speech.conversation.conversation import Conversation
from serve.speech.conversation.conversation_events import ConversationEvent

router = APIRouter()


class ConversationSession:
    """One client of the protocol; see Session."""

    def __init__(self, config: ConversationsConfig, request_id: str) -> None:
        self.idle_s = config.idle_timeout_s
        self.idle_code = NORMAL
        self.over: tuple[int, str] | None = None
        self._lead_s = config.lead_s
        self._request_id = request_id

    refuses_per_context = False

    def begin(self, conversation: Conversation) -> None:
        """Does nothing: contexts are opened by messages."""

    async def obey(self, frame: str, conversation: Conversation) -> Message | None:
        """As Session says; `opened` confirms that a context is open."""
        match read_message(frame):
            case OpenMessage() as message:
                conversation.open(message.context, message.settings(self._lead_s))
                return {"type": "opened", "context": message.context}
            case TextMessage() as message:
                await conversation.add(message.context, message.text)
            case FlushMessage() as message:
                conversation.flush(message.context)
            case CloseMessage() as message:
                conversation.close(message.context)
            case CancelMessage() as message:
                await conversation.cancel(message.context, None if message.played_ms is None else message.played_ms / 1000)
        return None

    def messages(self, event: ConversationEvent) -> Iterator[Message]:
        """As Session says."""
        return messages(event, self._request_id)

    def refusal(self, error: Exception, frame: str | None) -> Message:
        """As Session says."""
        return error_message(error, self._request_id, None if frame is None else context_in(frame))

    def farewell(self) -> Message | None:
        """As Session says."""
        return {"type": "going_away"}


@router.websocket("/v1/audio/conversation")
@requires(Scope.SPEECH, stream=True)
async def conversation(socket: WebSocket) -> None:
    services: Services = socket.app.state.get_services()
    session = ConversationSession(services.conversations.config, request_id_of(socket))
    await ConversationSocket(socket, services, session).converse()
