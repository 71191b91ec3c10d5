"""Key settings: the section `keys:` of the args.

Out:   KeysConfig, frozen
Owns:  the ways in which a service is open
Never: Ray; the keys themselves (serve/access)
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pipeline.config import StrictModel
from serve.config.stores import store_url

Openness = bool | Literal["until_first_key"] | None
AnonymousScope = Literal["speech", "voices", "text"]


class KeysConfig(StrictModel):
    """API keys."""

    open: Openness = Field(
        None,
        description="true: clients without a key are served, wherever they are; for a service behind another gateway. false: "
        "every client needs a key. until_first_key: as true until a key exists, then as false. null: clients on this machine "
        "need none until the first key is created",
    )
    anonymous_scopes: tuple[AnonymousScope, ...] = Field(
        ("speech", "text"),
        description="what clients without a key may do where they are served; storing lexicons, too, takes voices among them; "
        "/admin always needs a key",
    )
    open_lists: bool = Field(
        False,
        description="true: GET /v1/audio/voices and /v1/audio/models need no key, for programs that ask for them without one",
    )
    store: Annotated[str, AfterValidator(store_url)] | None = Field(
        None,
        description="where keys are kept: redis://... or rediss://..., which also counts quotas for all replicas together, "
        "or a file on this machine; null: voices.store",
    )

    def says_open(self) -> str:
        """Returns a sentence on what any client of the network may do without a key; empty: nothing."""
        if self.open not in (True, "until_first_key"):
            return ""
        allowed = ", ".join(self.anonymous_scopes) or "nothing but public routes"
        until = "also once keys exist" if self.open is True else "until the first key exists"
        return f"whoever reaches the port is served without a key, {until} (keys.open): {allowed}"
