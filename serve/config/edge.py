"""Edge: the settings of a box of a fleet.

In:    the section `edge:` of the args
Out:   EdgeConfig, frozen
Owns:  what a broker's address and a box's name may be
Never: Ray; the connection itself (serve/edge)
"""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from pipeline.config import StrictModel

SHAPE = "a broker is mqtt://[user:password@]host[:port], or mqtts:// for TLS, with a user and a password percent-encoded"
BOX_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
PORTS = {"mqtt": 1883, "mqtts": 8883}
"""where a broker listens unless its address says"""
Option = Literal["client_id", "keepalive", "ca_certs", "certfile", "keyfile"]


def broker_url(url: str) -> str:
    """Returns the URL of a broker, for pydantic.

    Raises:
        ValueError: it names no broker; says nothing of the URL, which may have a password.
    """
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or not url.isprintable() or " " in url or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(SHAPE)
    return url


class EdgeConfig(StrictModel):
    """A box of a fleet: docs/edge-fleet.md"""

    broker: Annotated[str, AfterValidator(broker_url)] | None = Field(
        None,
        description="of the fleet: mqtt://user:password@host:port or mqtts://...; null: part of none",
    )
    key: str | None = Field(None, max_length=4096, description="file of the center's public key")
    options: dict[Option, str | int] = Field(
        default_factory=dict,
        description="client_id, the name of the box; keepalive [s]; ca_certs, certfile, keyfile for mqtts",
    )

    @property
    def name(self) -> str:
        """The name under which the broker knows this client."""
        return str(self.options["client_id"])

    @model_validator(mode="after")
    def _belongs_together(self) -> "EdgeConfig":
        if self.broker is not None and (self.key is None or "client_id" not in self.options):
            raise ValueError("a broker needs key, the center's, and options.client_id, the name of this box")
        if self.broker is not None and not re.fullmatch(BOX_NAME, self.name):
            raise ValueError("options.client_id must be up to 64 letters, digits and . _ -, a letter or digit first")
        keepalive = self.options.get("keepalive", 60)
        if not isinstance(keepalive, int) or not 5 <= keepalive <= 3600:
            raise ValueError("options.keepalive must be from 5 to 3600 seconds")
        return self
