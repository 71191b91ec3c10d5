"""Key: everything that affects a segment's steps, as one digest.

In:    a Prompt, its SamplingParams, the engine's fingerprint, the tenant
Out:   a CacheEntryKey; two segments share its digest only if all their steps have the same bits
Never: a list of the fields that count, which could miss a new one: those that do not count are listed
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np

from pipeline.types import Head, Prompt, SamplingParams, SchedulingParams, Segment

FORMAT = 2  # of the entry's bytes (serialization.py)
WITHOUT_EFFECT = ("scheduling", "least_steps")  # they decide when the steps are generated, and which take is spoken


class Kept(StrEnum):
    """What an entry has beside the codes of each step."""

    CODES = "codes"
    """nothing: the vocoder reads codes"""
    HIDDEN = "hidden"
    """the hidden states, which the vocoder reads"""
    SAMPLES = "samples"
    """the samples: the model decodes what it generates"""


@dataclass(frozen=True, slots=True)
class CacheEntryKey:
    """The name of a segment's steps in the cache, and the facts it was computed from."""

    digest: str
    """SHA-256 of everything that affects the steps, in hexadecimal"""
    tenant: str
    """owner of the entry"""
    generations: tuple[int, int]
    """purge generations of all tenants and of this one, at the time of the request"""
    fingerprint: str
    """the engine that generates the steps"""
    payload: Kept


def entry_key_for(
    prompt: Prompt, sampling: SamplingParams, *, fingerprint: str, tenant: str, generations: tuple[int, int], payload: Kept
) -> CacheEntryKey:
    """Returns the key of the steps of this prompt.

    Args:
        fingerprint: the weights, code and configuration of the engine; another fingerprint gives other steps.
        tenant: part of the key, so that the speed of a reply does not reveal another tenant's requests.
        generations: a purge changes them, and with them every key.
        payload: what is stored of audio; of a text only its tokens are.
    """
    payload = payload if prompt.head is Head.CODE else Kept.CODES
    # The sizes of chunks decide when steps are decoded, and with windows the last bits of a sample.
    scheduling = prompt.scheduling if payload is Kept.SAMPLES else SchedulingParams()
    others = {
        "fingerprint": fingerprint,
        "tenant": tenant,
        "generations": generations,
        "kept": payload,
        "skipped": scheduling.skipped_chunk_sizes,
        "latency": scheduling.latency,
    }
    return CacheEntryKey(_digest(prompt, sampling, others), tenant, generations, fingerprint, payload)


def _digest(prompt: Prompt, sampling: SamplingParams, others: Mapping[str, object]) -> str:
    """Returns a SHA-256 of all values: another value anywhere gives another digest."""
    digest = hashlib.sha256()

    def add(name: str, value: object) -> None:
        content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        kind = f"{value.dtype.str}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        # The length makes it unambiguous: no two lists of parts have the same bytes.
        digest.update(f"{name}:{kind}:{len(content)};".encode() + content)

    for name, value in (("format", FORMAT), *sorted(others.items())):
        add(name, value)
    for part in (sampling, prompt):
        for field in fields(part):
            if field.name in WITHOUT_EFFECT:
                continue
            value = getattr(part, field.name)
            # A segment's index affects the draws; its text is in the prompt's ids.
            add(field.name, value.index if isinstance(value, Segment) else value)
    return digest.hexdigest()
