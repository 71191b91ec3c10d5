"""Protocols: the settings of listeners beside HTTP.

In:    the section `wyoming:` of the args
Out:   WyomingConfig, frozen
Never: Ray; the listeners themselves (serve/protocols)
"""

from pydantic import Field

from pipeline.config import StrictModel


class WyomingConfig(StrictModel):
    """A listener for Home Assistant. Its protocol has neither keys nor encryption."""

    port: int | None = Field(
        None,
        ge=1,
        le=65_535,
        description="TCP port on every node with an ingress replica, whose replicas share it; Home Assistant's habit is 10200; "
        "null: no listener",
    )
    host: str = Field("127.0.0.1", min_length=1, max_length=255, description="address it listens on")
    key: str | None = Field(
        None,
        pattern=r"^[a-z0-9]{4,32}$",
        description="id of the key, as `chattts-serve keys list` shows it, whose lanes and quotas its clients have; null: they "
        "are served as HTTP's clients without a key are",
    )
    max_connections: int = Field(64, ge=1, le=65_536, description="open connections per ingress replica")
