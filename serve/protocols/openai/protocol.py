"""OpenAI's protocol, with the service's own routes in its style. What belongs to no other protocol is answered in its form.

Out:   PROTOCOL
"""

from serve.http.protocol import Protocol

ROUTES = ("text", "speech", "dialogue", "conversation", "speech_batch", "jobs", "voices", "models")

PROTOCOL = Protocol(routers=tuple(f"serve.protocols.openai.routes.{part}" for part in ROUTES))
