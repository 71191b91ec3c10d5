"""Folders: every folder that a service with this configuration writes to.

In:    the configuration, the cache folder
Out:   what is written -> the folder; a ConfigError that names those that cannot be written here
Owns:  where a file is kept whose place the configuration leaves open
Never: creating or writing anything
"""

import os
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.paths import cache_home
from serve.config.app_config import AppConfig, TracingConfig, project_path
from serve.config.jobs import JobsConfig

STORE_FILE = "store.sqlite"
JOBS = "jobs"
TRACES = "traces"


def store_of(named: str | None, home: Path | None = None) -> str:
    """Returns the URL of a Redis, or the file of a store on this machine: the home's own where none is named.

    Here and below, home is the folder of CHATTTS_HOME; None: this process's.
    """
    return str((home or cache_home()) / STORE_FILE) if named is None else named


def jobs_folder(config: JobsConfig, home: Path | None = None) -> Path:
    """Returns the folder of the jobs' texts and audio."""
    return (home or cache_home()) / JOBS if config.folder is None else project_path(config.folder)


def traces_folder(config: TracingConfig, home: Path | None = None) -> Path:
    """Returns the folder of traces, where they are written to files."""
    return (home or cache_home()) / TRACES if config.folder is None else Path(config.folder)


def written_folders(config: AppConfig, home: Path | None = None) -> dict[str, Path]:
    """Returns what is kept, by its key in the configuration -> the folder it is written to."""
    folders = {}
    if config.jobs.max_jobs:
        folders["jobs.folder"] = jobs_folder(config.jobs, home)
    if config.tracing.exporter == "file":
        folders["tracing.folder"] = traces_folder(config.tracing, home)
    for key, named in (("voices.store", config.voices.store), ("keys.store", config.keys.store or config.voices.store)):
        if "://" not in (store := store_of(named, home)):
            folders[key] = Path(store).parent
    return folders


def check_folders(config: AppConfig) -> None:
    """Checks that this process can write to every one, before a replica accepts what it cannot keep.

    Raises:
        ConfigError: names those that cannot be written.
    """
    mistakes = [
        f"{key}: {folder} cannot be written here: mount it writable, or name another folder"
        for key, folder in written_folders(config).items()
        if not can_be_written(folder)
    ]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def can_be_written(folder: Path) -> bool:
    """True if files can be created there; for a folder that does not exist yet, if it can be created."""
    place = next(existing for existing in (folder.absolute(), *folder.absolute().parents) if existing.exists())
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
