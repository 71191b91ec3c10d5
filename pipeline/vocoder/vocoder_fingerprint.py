"""Vocoder fingerprint: a hash of everything that affects its samples.

In:    VocoderConfig, Checkpoint, this machine
Out:   the hash: two vocoders with the same one return the same samples for the same steps
Never: a list of the settings that count, which could fall behind: the settings that do not count are listed
"""

from pipeline.checkpoint.layout import DVAE_FILE
from pipeline.checkpoint.weights import Checkpoint
from pipeline.config import VocoderConfig
from pipeline.model.fingerprint import fingerprint_of, native_form
from pipeline.model.gpu.placement import on_this_machine
from pipeline.vocoder.incremental.incremental_network import SOURCE

WITHOUT_EFFECT = frozenset({"placement"})
SOURCES = ("spec.py", "checkpoint", "model", "native", "vocoder")  # of pipeline/: the code that computes the numbers


def vocoder_fingerprint(config: VocoderConfig, checkpoint: Checkpoint) -> str:
    """Returns a hash of weights, code, configuration, libraries and kind of processor. Blocking: it may hash the weights."""
    config = on_this_machine(config)
    files, form = (DVAE_FILE, *checkpoint.vocoder_files(config.size)), _form(config)
    return fingerprint_of(config, checkpoint, without_effect=WITHOUT_EFFECT, files=files, sources=SOURCES, form=form)


def _form(config: VocoderConfig) -> str:
    """Returns how this machine decodes: `windows`, or `native`, incrementally, with a set of instructions; resolves `auto`."""
    return (native_form(SOURCE) if config.allows_incremental else None) or "windows"
