"""Engine fingerprint: a hash of everything that affects an engine's numbers.

In:    EngineConfig, Checkpoint, this machine
Out:   the hash: two engines with the same one generate the same steps from the same prompt
Never: a list of the settings that count, which could fall behind: the settings that do not count are listed
"""

from pipeline.checkpoint.layout import EMBED_FILE, GPT_CONFIG_FILE, GPT_FILE
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import EngineConfig
from pipeline.model.cpu.native import SOURCE
from pipeline.model.fingerprint import fingerprint_of, native_form
from pipeline.model.gpu.placement import on_this_machine

# Scheduling and buffering settings; they do not affect the generated numbers.
WITHOUT_EFFECT = frozenset({"kv_budget_mib", "max_waiting", "round_timeout_s", "gpu_memory_share"})
FILES = (GPT_FILE, EMBED_FILE, GPT_CONFIG_FILE)
SOURCES = ("spec.py", "checkpoint", "model", "engine", "native")  # of pipeline/: the code that computes the numbers


def engine_fingerprint(config: EngineConfig, checkpoint: Checkpoint) -> str:
    """Returns a hash of weights, code, configuration, libraries and kind of processor. Blocking: it may hash the weights."""
    config = on_this_machine(config)
    form = _form(config)
    return fingerprint_of(config, checkpoint, without_effect=WITHOUT_EFFECT, files=FILES, sources=SOURCES, form=form)


def _form(config: EngineConfig) -> str:
    """Returns how this machine decodes: `torch`, or `native` with a set of instructions; resolves `auto`."""
    is_native = config.device == "cpu" and config.decode != "torch"
    return (native_form(SOURCE) if is_native else None) or "torch"
