"""Center: tells each box of a fleet what it should have, and serves the files.

In:    the states of boxes at a broker; the table of serve/edge/fleet.py
Out:   a signed manifest per box, retained; files over HTTP, in ranges
Owns:  the serial numbers, in a file beside the table
Never: a file that no variant has; an end because of what a box says
"""

import asyncio
import hashlib
import json
import logging
import re
from pathlib import Path

import aiomqtt
import uvicorn
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pipeline.durable_file import write_durably
from pipeline.errors import ConfigError
from serve.config.edge import BOX_NAME
from serve.edge.broker_link import STATE, TARGET, stay_connected
from serve.edge.fleet import BoxState, choose, read_fleet, read_variants
from serve.edge.signed_manifest import Manifest, canonical, read_private_key, sign
from serve.http import uvicorn_protocols

LOG = logging.getLogger("ray.serve.chattts")

MOST_BOXES = 10_000
MOST_STATE_BYTES = 16 << 10
MOST_STRANGE = 100  # lines of the log
MOST_DOWNLOADS = 256  # at once; more are answered 503, and come again
SERIALS = TypeAdapter(dict[str, tuple[int, str]])


class Center:
    """The center of one fleet."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: of the table.

        Raises:
            ConfigError: the table, its key or a folder in it is wrong.
        """
        self.fleet = read_fleet(path)
        self._key = read_private_key(path.parent / Path(self.fleet.key or "").expanduser())
        self._variants, self._places = read_variants(self.fleet, path.parent)
        self._strange: set[str] = set()
        """topics whose messages are no states"""
        self._serials_file = path.with_suffix(".serials.json")
        self._serials: dict[str, tuple[int, str]] = {}
        """box -> the serial number of its latest manifest, and the hash of what that says"""
        try:
            self._serials = SERIALS.validate_json(self._serials_file.read_bytes())
        except FileNotFoundError:
            pass
        except ValidationError as error:
            raise ConfigError(
                f"{self._serials_file}: damaged; boxes take no lower numbers: restore it from a backup"
            ) from error

    def app(self) -> Starlette:
        """Returns the routes: the files by their SHA-256, and nothing else."""
        return Starlette(routes=[Route("/files/{digest}", self._file)])

    async def _file(self, request: Request) -> Response:
        path = self._places.get(request.path_params["digest"])
        return Response(status_code=404) if path is None else FileResponse(path, media_type="application/octet-stream")

    async def run(self) -> None:
        """Serves until a signal ends it."""
        uvicorn_protocols.install()
        config = uvicorn.Config(
            self.app(),
            host=self.fleet.host,
            port=self.fleet.port,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MOST_DOWNLOADS,
            timeout_graceful_shutdown=1,
        )
        talking = asyncio.create_task(stay_connected(self.fleet, self._talk))
        try:
            await uvicorn.Server(config).serve()
        finally:
            talking.cancel()

    async def _talk(self, client: aiomqtt.Client) -> None:
        """Answers the states of boxes, as long as the connection lasts."""
        await client.subscribe(STATE.format("+"), qos=1)
        async for message in client.messages:
            try:
                box = str(message.topic).split("/")[2]
                answer = await self.answer(box, bytes(message.payload))
            except (ValueError, TypeError, IndexError):  # no state of a box; a ValidationError is a ValueError
                if len(self._strange) < MOST_STRANGE and message.topic.value not in self._strange:
                    self._strange.add(message.topic.value)
                    LOG.warning("center: %.100s has no state of a box, which is ignored", message.topic.value)
                continue
            if answer is not None:
                await client.publish(TARGET.format(box), answer, qos=1, retain=True)

    async def answer(self, box: str, payload: bytes) -> bytes | None:
        """Returns the message for a box with this state; None: it is away.

        Raises:
            ValueError: the state or the name is none.
        """
        if len(payload) > MOST_STATE_BYTES or not re.fullmatch(BOX_NAME, box):
            raise ValueError("no state of a box")
        state = BoxState.model_validate_json(payload)
        if not state.online:
            return None
        variants = choose(tuple(self.fleet.variants.values()), self._variants, state)
        manifest = Manifest(box=box, serial=1, url=self.fleet.url, variants=variants)  # without its number
        content = hashlib.sha256(canonical(manifest)).hexdigest()
        serial, latest = self._serials.get(box, (0, ""))
        if content != latest or serial < state.serial:
            if box not in self._serials and len(self._serials) >= MOST_BOXES:
                raise ValueError(f"more than {MOST_BOXES} boxes")
            serial = max(serial, state.serial) + 1  # the file may be older than the box, or new
            serials = self._serials | {box: (serial, content)}
            await asyncio.to_thread(write_durably, self._serials_file, json.dumps(serials).encode(), mode=0o600)
            self._serials = serials
            LOG.info("center: %s is to have %s (%d)", box, variants[-1].name, serial)
        return sign(Manifest.model_validate(manifest.model_dump() | {"serial": serial}), self._key)
