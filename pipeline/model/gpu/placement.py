"""Placement: what `device: auto` means in this process.

In:    the configuration of an engine or a vocoder
Out:   the same configuration with a device
Never: a choice between several GPUs: a process uses the first one it sees, and Ray shows each replica its own
"""

import ctypes
from typing import TypeVar

from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.errors import ConfigError
from pipeline.with_torch import has_torch, torch_part

DRIVER = "libcuda.so.1"

Placed = TypeVar("Placed", EngineConfig, VocoderConfig)


def on_this_machine(config: Placed) -> Placed:
    """Returns the configuration with `device: auto` resolved: cuda if this process sees a GPU, else cpu.

    Raises:
        ConfigError: the other settings do not fit that device.
    """
    if config.device != "auto":
        return config
    device = "cuda" if sees_gpu() else "cpu"
    try:
        return type(config).model_validate(config.model_dump() | {"device": device})
    except ValueError as error:
        raise ConfigError(f"device auto is {device} in this process, which the other settings do not fit: {error}") from error


def sees_gpu() -> bool:
    """True if this process can use a GPU. Imports torch only where NVIDIA's driver is."""
    return has_driver() and has_torch() and bool(torch_part("torch", wanted_for="device cuda").cuda.is_available())


def has_driver() -> bool:
    """True if this process can load NVIDIA's driver."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


def pipeline_on_this_machine(pipeline: PipelineConfig) -> PipelineConfig:
    """Returns the configuration with the devices of engine and vocoder resolved. Raises like `on_this_machine`."""
    placed = {"engine": on_this_machine(pipeline.engine), "vocoder": on_this_machine(pipeline.vocoder)}
    return pipeline.model_copy(update=placed)
