"""Conversation: the WebSocket on which a client writes text and receives its audio.

In:    a WebSocket
Out:   JSON messages
Owns:  nothing
Never: Ray, torch
"""

from fastapi import APIRouter, WebSocket

from serve.access.api_keys import Scope
from serve.http.conversation_door import ConversationDoor
from serve.http.conversation_socket import ConversationSocket
from serve.http.middleware import request_id_of
from serve.http.route_access import requires
from serve.http.services import Services

router = APIRouter()


@router.websocket("/v1/audio/conversation")
@requires(Scope.SPEECH, stream=True)
async def conversation(socket: WebSocket) -> None:
    services: Services = socket.app.state.get_services()
    door = ConversationDoor(services.conversations.config, request_id_of(socket))
    await ConversationSocket(socket, services, door).converse()
