"""Ownership: who may change a record that all may use, and how much of a kind one owner may keep.

In:    who writes; the records there are, by owner
Out:   nothing; NotTheOwner, ShareUsedUp
Never: a store; what makes somebody the operator
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.errors import NotTheOwner, ShareUsedUp


@dataclass(frozen=True, slots=True)
class Writer:
    """Who stores, replaces or deletes a record."""

    id: str = ""
    """which the records keep as their owner; empty: the operator's, as those of releases that kept no owner"""
    is_operator: bool = True
    """True: it may change what belongs to others, and has no share"""

    def check(self, owner: str) -> None:
        """Checks that it may replace or delete a record of an owner.

        Raises:
            NotTheOwner
        """
        if not self.is_operator and owner != self.id:
            raise NotTheOwner("this belongs to another key; only it, or a key with the scope admin, may change it", param="id")


OPERATOR = Writer()


@dataclass(frozen=True, slots=True)
class Share:
    """The most that one owner may keep of a kind."""

    kind: str
    """its plural, for messages"""
    records: int
    size: int
    """bytes of all of them"""

    def check(self, writer: Writer, holdings: Iterable[tuple[str, int]], size: int) -> None:
        """Checks that another record has room.

        Args:
            holdings: owner and bytes of every other record of the kind.
            size: of the new one [bytes].

        Raises:
            ShareUsedUp
        """
        if writer.is_operator:
            return
        own = [record_size for owner, record_size in holdings if owner == writer.id]
        if len(own) >= self.records or sum(own) + size > self.size:
            raise ShareUsedUp(
                f"one key may keep {self.records} {self.kind} of {self.size >> 10} KiB together; yours are {len(own)} of "
                f"{sum(own) >> 10} KiB, and this one has {size} bytes: delete some of yours, or ask the operator"
            )


def owner_in(value: bytes) -> str:
    """Returns the owner that a JSON record names; empty if it names none or cannot be read."""
    try:
        return owner_of(json.loads(value))
    except ValueError:
        return ""


def owner_of(record: object) -> str:
    """Returns the owner in a record that was read from JSON; empty if it names none."""
    owner = record.get("owner") if isinstance(record, dict) else None
    return owner if isinstance(owner, str) else ""
