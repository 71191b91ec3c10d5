"""MCP tools: what an agent may do with the service, each tool a call of one of the service's own routes.

In:    arguments of tools, bounded in their length
Out:   text, JSON, a file, a short audio or a link
Owns:  nothing: keys, quotas and errors are the routes'
Never: a path or a header that an agent chooses; Ray
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
from mcp.server import MCPServer
from mcp.server.mcpserver import Audio, Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request

MOST_AUDIO = 4 << 20
"""of an audio that is a result itself [bytes]"""
MOST_TEXT = 1_000_000
"""of an audiobook [characters]"""
MOST_BODY = 8 << 20
TIMEOUT_S = 600.0
JOBS = "/v1/audio/jobs"
SHOWN = ("id", "status", "parts", "progress", "waiting_for", "error")
INSTRUCTIONS = "Speaks texts. speak is for short ones, make_audiobook for long ones: ask for its job until it has succeeded."
HOP_HEADERS = {"content-length", "content-type", "accept", "accept-encoding", "transfer-encoding", "connection", "range"}

Name = Annotated[str, Field(max_length=200)]
JobId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Format = Literal["mp3", "opus", "wav", "flac"]


class Service(ABC):
    """The service as its tools reach it."""

    @abstractmethod
    def client(self) -> Any:
        """Returns a client of HTTP with the address and the key of the service."""

    @abstractmethod
    async def deliver(self, method: str, path: str, name: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Returns the audio that a route answers with, as a result of a tool."""

    async def ask(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Returns the JSON that a route answers with.

        Raises:
            ToolError: it refuses.
        """
        try:
            async with self.client() as client:
                return checked(await client.request(method, path, json=fields)).json()
        except httpx2.HTTPError as error:
            raise ToolError(f"the service does not answer: {type(error).__name__}") from None


class OwnRoutes(Service):
    """The service of this process, called as the client of a request would call it: with its headers, from its address."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def client(self) -> Any:
        """As Service says."""
        request = self._request
        peer = (request.client.host, request.client.port) if request.client else ("", 0)
        transport = httpx2.ASGITransport(request.state.service, raise_app_exceptions=False, client=peer)
        passed = [(name, value) for name, value in request.headers.items() if name not in HOP_HEADERS]
        headers = [(name, value) for name, value in passed if not name.startswith("mcp-")]
        return httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers, timeout=TIMEOUT_S)

    async def deliver(self, method: str, path: str, name: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Returns short audio itself, and of a job the path under which the client fetches it with its key."""
        if method == "GET":
            return f"GET {path} with your key"
        async with self.client() as client:
            reply = checked(await client.request(method, path, json=fields))
        if len(reply.content) > MOST_AUDIO:
            raise ToolError(f"the audio is longer than {MOST_AUDIO >> 20} MiB: choose mp3, or make_audiobook")
        return Audio(data=reply.content, format=name.rpartition(".")[2])


class RemoteService(Service):
    """A service at an address; its audio becomes files."""

    def __init__(self, url: str, key: str | None, folder: Path) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._folder = folder

    def client(self) -> Any:
        """As Service says."""
        return httpx2.AsyncClient(base_url=self._url, headers=self._headers, timeout=TIMEOUT_S)

    async def deliver(self, method: str, path: str, name: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Returns the path of a file, which stands under its name once it is whole."""
        target = self._folder.resolve() / name
        draft = target.with_name(f".{name}.part")
        try:
            async with self.client() as client, client.stream(method, path, json=fields) as reply:
                if reply.status_code >= 400:
                    await reply.aread()
                checked(reply)
                with draft.open("wb") as file:
                    async for piece in reply.aiter_bytes():
                        file.write(piece)
        except httpx2.HTTPError as error:
            raise ToolError(f"the service does not answer: {type(error).__name__}") from None
        draft.replace(target)
        return str(target)


def checked(reply: Any) -> Any:
    """Returns a reply that is no refusal.

    Raises:
        ToolError: what the service says against it.
    """
    if reply.status_code < 400:
        return reply
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = "no reason is known"
    raise ToolError(f"refused with {reply.status_code}: {message}")


def build_server(service_of: Callable[[Any], Service]) -> Any:
    """Returns the tools.

    Args:
        service_of: the context of a call -> the service that it reaches.
    """

    async def speak(
        text: Annotated[str, Field(min_length=1, max_length=2000)], ctx: Context, voice: Name = "", format: Format = "mp3"
    ) -> Any:
        """Speaks a short text. Returns the path of a sound file, or the audio itself."""
        fields = {"input": text, "response_format": format, "stream": False, **({"voice": voice} if voice else {})}
        name = f"speech-{hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:12]}.{format}"
        return await service_of(ctx).deliver("POST", "/v1/audio/speech", name, fields)

    async def list_voices(ctx: Context) -> Any:
        """Lists the voices: names, and words for how they sound."""
        return await service_of(ctx).ask("GET", "/v1/audio/voices")

    async def make_audiobook(
        text: Annotated[str, Field(min_length=1, max_length=MOST_TEXT)],
        ctx: Context,
        title: Name = "",
        voice: Name = "",
        format: Literal["mp3", "m4b", "opus", "flac"] = "mp3",
    ) -> Any:
        """Begins a job that speaks a long text, Markdown whose largest headings begin chapters. Returns the job."""
        fields = {"input": text, "input_type": "markdown", "response_format": format, "title": title}
        job = await service_of(ctx).ask("POST", JOBS, {**fields, **({"voice": voice} if voice else {})})
        return {name: job.get(name) for name in SHOWN}

    async def get_job(job_id: JobId, ctx: Context) -> Any:
        """Returns how far a job is."""
        job = await service_of(ctx).ask("GET", f"{JOBS}/{job_id}")
        return {name: job.get(name) for name in SHOWN}

    async def fetch_job(job_id: JobId, ctx: Context) -> Any:
        """Fetches the sound file of a job that has succeeded. Returns its path, or the address to fetch it from."""
        service = service_of(ctx)
        job = await service.ask("GET", f"{JOBS}/{job_id}")
        if job["status"] != "succeeded":
            raise ToolError(f"the job is {job['status']}: fetch it once it has succeeded")
        container = str(job.get("response_format", "mp3"))
        return await service.deliver("GET", f"{JOBS}/{job_id}/audio", f"{job_id}.{container}")

    server = MCPServer("chattts-serve", instructions=INSTRUCTIONS)
    for tool in (speak, list_voices, make_audiobook, get_job, fetch_job):
        server.add_tool(tool, structured_output=False)
    return server


SERVER = build_server(lambda context: OwnRoutes(context.request_context.request))
"""of the service in this process"""


def one_request() -> Starlette:
    """Returns the application of SERVER for one request: no replica keeps anything of a client, so any takes the next."""
    # Host and Origin are checked by the service's own middleware.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app: Starlette = SERVER.streamable_http_app(
        stateless_http=True, json_response=True, transport_security=security, max_request_body_size=MOST_BODY
    )
    return app
