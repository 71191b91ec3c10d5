"""Upstream: the ChatTTS package itself, loaded from any checkpoint, for benchmarks and parity tests.

In:    the folder of a checkpoint
Out:   a `ChatTTS.Chat`
Never: this project's own model
"""

import json
import logging
from dataclasses import asdict
from pathlib import Path

import ChatTTS
import numpy as np
import pybase16384
import torch
from ChatTTS.config import config as upstream_config
from numpy.typing import NDArray
from safetensors import safe_open


def load_chat(root: Path, device: str = "cpu") -> ChatTTS.Chat:
    """Loads ChatTTS in float32, configured by the shapes in the checkpoint."""
    config = _config(root)
    chat = ChatTTS.Chat(logging.getLogger("upstream"))
    chat.config = config
    files = {name: str(root / file) for name, file in asdict(config.path).items()}
    with torch.random.fork_rng():
        loaded = chat._load(device=torch.device(device), coef=None, **files)
    assert loaded, "the package refused the checkpoint"
    return chat


def exactly(steps: int) -> ChatTTS.Chat.InferCodeParams:
    """Returns the package's own defaults with a forced length."""
    return ChatTTS.Chat.InferCodeParams(max_new_token=steps, min_new_token=steps, show_tqdm=False)


def to_pcm(samples: NDArray[np.float32]) -> bytes:
    """Converts float32 samples, (m,) or (1, m), to 16-bit ones."""
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def _config(root: Path) -> upstream_config.Config:
    gpt = json.loads((root / "asset/gpt/config.json").read_text())
    embed = _shapes(root / "asset/Embed.safetensors")
    text_vocab, width = embed["emb_text.weight"]
    decoder, dvae, vocos = (_shapes(root / f"asset/{part}.safetensors") for part in ("Decoder", "DVAE", "Vocos"))
    vocos_width, vocos_mlp = vocos["backbone.embed.weight"][0], vocos["backbone.convnext.0.pwconv1.weight"][0]
    dvae_decoder = _conv_stack(dvae, "decoder")
    backbone = upstream_config.BackboneInitArgs(
        dim=vocos_width, intermediate_dim=vocos_mlp, num_layers=_count(vocos, "backbone.convnext")
    )
    statistics = np.concatenate([np.ones(width, np.float16), np.zeros(width, np.float16)])  # std, mean
    return upstream_config.Config(
        decoder=upstream_config.Decoder(**_conv_stack(decoder, "decoder")),
        dvae=upstream_config.DVAE(
            encoder=upstream_config.Decoder(**_conv_stack(dvae, "encoder")),
            decoder=upstream_config.Decoder(**dvae_decoder),
            vq=upstream_config.VQ(dim=2 * dvae_decoder["idim"]),
        ),
        gpt=upstream_config.GPT(
            hidden_size=width,
            intermediate_size=gpt["intermediate_size"],
            num_attention_heads=gpt["num_attention_heads"],
            num_hidden_layers=gpt["num_hidden_layers"],
            num_text_tokens=text_vocab,
        ),
        embed=upstream_config.Embed(hidden_size=width, num_text_tokens=text_vocab),
        vocos=upstream_config.Vocos(
            backbone=upstream_config.Backbone(init_args=backbone),
            head=upstream_config.FourierHead(init_args=upstream_config.FourierHeadInitArgs(dim=vocos_width)),
        ),
        spk_stat=pybase16384.encode_to_string(statistics.tobytes()),
    )


def _conv_stack(shapes: dict[str, list[int]], prefix: str) -> dict[str, int]:
    bottleneck, inputs, _ = shapes[f"{prefix}.conv_in.0.weight"]
    outputs, hidden, _ = shapes[f"{prefix}.conv_out.weight"]
    layers = _count(shapes, f"{prefix}.decoder_block")
    return {"idim": inputs, "odim": outputs, "hidden": hidden, "n_layer": layers, "bn_dim": bottleneck}


def _count(shapes: dict[str, list[int]], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[1] for name in shapes if name.startswith(prefix + ".")})


def _shapes(path: Path) -> dict[str, list[int]]:
    with safe_open(path, framework="np") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
