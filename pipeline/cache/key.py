"""Key: everything a segment's steps follow from, as one name.

In:    a Prompt, its SamplingParams, the fingerprint that decodes it, whose it is
Out:   a CacheEntryKey, whose key two segments share only if every step of theirs has the same bits
Owns:  nothing
Never: a list of fields that somebody could forget to lengthen: all fields of both values count
"""

import hashlib
from dataclasses import dataclass, fields

import numpy as np

from pipeline.types import Prompt, SamplingParams, SchedulingParams, Segment

FORMAT = 1  # of what is kept under the name (pack.py)


@dataclass(frozen=True, slots=True)
class CacheEntryKey:
    """Where a segment's steps are kept."""

    key: str
    tenant: str
    """whose they are"""
    generations: tuple[int, int]
    """everybody's and the tenant's, when it was asked for"""
    fingerprint: str
    """what makes these steps"""
    hidden: bool
    """whether their hidden states are kept too"""


def entry_key_for(
    prompt: Prompt, sampling: SamplingParams, *, fingerprint: str, tenant: str, generations: tuple[int, int], hidden: bool
) -> CacheEntryKey:
    """The place of the steps this prompt and these values give.

    Args:
        fingerprint: the weights, the code and the configuration that decode; another fingerprint gives other steps.
        tenant: nobody hears by a reply's speed what another tenant has asked for.
        generations: a purge changes them, and with them every key.
        hidden: the vocoder reads hidden states, not codes.
    """
    key = step_key(prompt, sampling, fingerprint=fingerprint, tenant=tenant, generations=generations, hidden=hidden)
    return CacheEntryKey(key, tenant, generations, fingerprint, hidden)


def step_key(prompt: Prompt, sampling: SamplingParams, **beside: object) -> str:
    """A name of all that is given: another value anywhere is another name."""
    digest = hashlib.sha256()

    def add(name: str, value: object) -> None:
        content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        kind = f"{value.dtype.str}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        # Every part says how long it is: no two lists of parts run into the same bytes.
        digest.update(f"{name}:{kind}:{len(content)};".encode() + content)

    for name, value in (("format", FORMAT), *sorted(beside.items())):
        add(name, value)
    for part in (sampling, prompt):
        for field in fields(part):
            value = getattr(part, field.name)
            if isinstance(value, SchedulingParams):
                continue  # when the steps are made, not which
            # Of a segment its number alone reaches the steps, through the draws; its text is in the prompt's ids.
            add(field.name, value.index if isinstance(value, Segment) else value)
    return digest.hexdigest()
