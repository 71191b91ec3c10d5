"""Views: what is told about a job beside its record, and about all jobs together.

In:    records, scripts, what is finished
Out:   JobView, JobLoad
Never: the store, files
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.books.job_files import JobFiles
from pipeline.books.script import Script
from pipeline.books.track import Track
from serve.jobs.records import Job


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with what is finished of it."""

    job: Job
    script: Script
    files: JobFiles
    track: Track
    finished: Mapping[str, int]
    """samples of the finished parts, by their keys"""
    audio_s: float
    """of the finished parts"""


@dataclass(frozen=True, slots=True)
class JobLoad:
    """The work of all jobs together."""

    jobs: int
    """that are spoken or wait for it"""
    backlog_s: float
    """of audio that is missing [s]"""
    rate: float | None
    """seconds of audio per second; None: not known, because nothing is spoken"""
