"""`device: auto`: resolved in the process that computes, and never without saying so."""

import pytest

from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine.fingerprint import engine_fingerprint
from pipeline.errors import ConfigError
from pipeline.model.gpu import placement


@pytest.mark.parametrize(("has_gpu", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_the_gpu_that_the_process_sees(monkeypatch, has_gpu, device):
    monkeypatch.setattr(placement, "sees_gpu", lambda: has_gpu)
    asked = EngineConfig(device="auto", slots=3)
    assert placement.on_this_machine(asked) == EngineConfig(device=device, slots=3)
    assert placement.on_this_machine(VocoderConfig(device="auto")).device == device
    both = PipelineConfig(engine=asked, vocoder=VocoderConfig(device="cpu"))
    found = placement.pipeline_on_this_machine(both)
    assert (found.engine.device, found.vocoder.device) == (device, "cpu")
    assert placement.on_this_machine(EngineConfig(device="cpu")).device == "cpu"


def test_settings_that_the_found_device_cannot_take_are_refused(monkeypatch):
    monkeypatch.setattr(placement, "sees_gpu", lambda: False)
    asked = EngineConfig(device="auto", dtype="bfloat16", weights="int8", decode="torch")
    with pytest.raises(ConfigError, match="device auto is cpu in this process"):
        placement.on_this_machine(asked)


def test_the_fingerprint_is_that_of_the_device_found(monkeypatch, demo):
    monkeypatch.setattr(placement, "sees_gpu", lambda: False)
    assert engine_fingerprint(EngineConfig(device="auto"), demo) == engine_fingerprint(EngineConfig(), demo)
