"""Upstream's own modules and tokenizer load a made checkpoint, strictly, and what they make of it is sane."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchaudio
from ChatTTS.model import DVAE, Embed
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BertTokenizerFast, LlamaConfig, LlamaModel
from vocos import Vocos
from vocos.feature_extractors import MelSpectrogramFeatures
from vocos.heads import ISTFTHead
from vocos.models import VocosBackbone

from pipeline.checkpoint.layout import (
    DVAE_FILE,
    EMBED_FILE,
    GPT_FILE,
    MEL_DECODER_FILE,
    TOKENIZER_FILE,
    VOCOS_FILE,
    VQ_GROUPS,
    VQ_LEVELS,
    ConvStack,
)
from pipeline.checkpoint.locate import resolve
from pipeline.checkpoint.random_model import AUDIO_VOCAB, RANDOM_MODELS, RandomModel
from pipeline.checkpoint.weights import open_checkpoint
from pipeline.paths import cache_home
from pipeline.spec import CODEBOOKS, FFT_SIZE, HOP, MEL_BANDS, SAMPLE_RATE

STEPS = 60
TEXTS = [
    "Hello there, how are you today?", "It's 3 o'clock; don't panic -- caffè latte (two)!",
    "今天天气很好，我们去公园玩吧。", "他用iPhone打了个call，然后说OK。",
    "[Stts][spk_emb][speed_5]hello [uv_break] 你好[laugh][Ptts]",
    "[Sbreak]unknown: 龘 ☃ \u00a0 \t \u200b tail[Pbreak][oral_2][laugh_0][break_4]", "",
]  # fmt: skip


@pytest.fixture(scope="module", params=["small-random", "full-random"])
def model(request: pytest.FixtureRequest) -> tuple[RandomModel, Path]:
    return RANDOM_MODELS[request.param], resolve(request.param, cache_home())


def stack_config(stack: ConvStack) -> dict[str, int]:
    return {
        "idim": stack.inputs,
        "odim": stack.outputs,
        "hidden": stack.hidden,
        "n_layer": stack.layers,
        "bn_dim": stack.bottleneck,
    }


def strictly(module, path):
    module.load_state_dict(load_file(path), strict=True)
    return module.eval()


def upstream_vocos(recipe: RandomModel, root: Path) -> Vocos:
    vocos = Vocos(
        MelSpectrogramFeatures(sample_rate=SAMPLE_RATE, n_fft=FFT_SIZE, hop_length=HOP, n_mels=MEL_BANDS, padding="center"),
        VocosBackbone(
            input_channels=MEL_BANDS,
            dim=recipe.vocos_width,
            intermediate_dim=recipe.vocos_mlp_width,
            num_layers=recipe.vocos_layers,
        ),
        ISTFTHead(dim=recipe.vocos_width, n_fft=FFT_SIZE, hop_length=HOP, padding="center"),
    )
    return strictly(vocos, root / VOCOS_FILE)


def upstream_mel_decoder(recipe: RandomModel, root: Path) -> DVAE:
    module = DVAE(decoder_config=stack_config(recipe.mel_decoder), dim=recipe.mel_decoder.inputs)
    return strictly(module, root / MEL_DECODER_FILE)


def upstream_dvae(recipe: RandomModel, root: Path) -> DVAE:
    module = DVAE(
        decoder_config=stack_config(recipe.dvae_decoder),
        encoder_config=stack_config(recipe.dvae_encoder),
        vq_config={"dim": recipe.dvae_encoder.outputs, "levels": VQ_LEVELS, "G": VQ_GROUPS, "R": 2},
        dim=recipe.dvae_decoder.inputs,
    )
    return strictly(module, root / DVAE_FILE)


def upstream_embed(recipe: RandomModel, root: Path) -> Embed:
    return strictly(Embed(recipe.width, AUDIO_VOCAB, len(recipe.tokens), CODEBOOKS), root / EMBED_FILE)


def unit_rms(*shape: int, seed: int) -> torch.Tensor:
    hidden = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return hidden / hidden.square().mean(-1, keepdim=True).sqrt()


def assert_audible(samples: torch.Tensor) -> None:
    assert torch.isfinite(samples).all()
    assert 0.05 < samples.abs().max() < 0.9
    assert samples.std() > 0.02


def test_llama_loads_every_tensor(model: tuple[RandomModel, Path]) -> None:
    _, root = model
    with torch.device("meta"):
        expected = LlamaModel(LlamaConfig.from_pretrained(root / "asset/gpt")).state_dict()
    tensors = load_file(root / GPT_FILE)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {name: tensor.shape for name, tensor in expected.items()}


def test_llama_of_the_demo_loads_from_the_folder(demo_root: Path) -> None:
    _, report = LlamaModel.from_pretrained(demo_root / "asset/gpt", output_loading_info=True)
    assert not any(report.values()), report


def test_config_says_what_upstream_reads(model: tuple[RandomModel, Path]) -> None:
    _, root = model
    spec = open_checkpoint(root).gpt_spec
    config = LlamaConfig.from_pretrained(root / "asset/gpt")
    assert (spec.layers, spec.width, spec.heads, spec.head_dim, spec.mlp_width, spec.max_positions, spec.rms_eps) == (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.head_dim,
        config.intermediate_size,
        config.max_position_embeddings,
        config.rms_norm_eps,
    )
    assert spec.rope_theta == config.rope_parameters["rope_theta"]


def test_logits_are_neither_flat_nor_certain(model: tuple[RandomModel, Path]) -> None:
    embed = upstream_embed(*model)
    hidden = unit_rms(STEPS, model[0].width, seed=1)
    with torch.inference_mode():
        for head in (embed.head_text, *embed.head_code):
            assert 1 < head(hidden).std() < 3


def test_hidden_states_become_audio(model: tuple[RandomModel, Path]) -> None:
    decoder, vocos = upstream_mel_decoder(*model), upstream_vocos(*model)
    for seed in range(3):
        with torch.inference_mode():
            samples = vocos.decode(decoder(unit_rms(1, STEPS, model[0].width, seed=seed).transpose(1, 2)))
        assert samples.shape == (1, (2 * STEPS - 1) * HOP)
        assert_audible(samples)


def test_codes_become_audio_and_audio_becomes_codes(model: tuple[RandomModel, Path]) -> None:
    dvae, vocos = upstream_dvae(*model), upstream_vocos(*model)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(AUDIO_VOCAB - 1, (1, CODEBOOKS, STEPS), generator=generator)
    with torch.inference_mode():
        assert_audible(vocos.decode(dvae(codes, "decode")))
        encoded = dvae.sample_audio(0.1 * torch.randn(SAMPLE_RATE, generator=generator))
    assert encoded.shape == (CODEBOOKS, 47)
    assert encoded.unique().numel() > 20  # the encoder listens


def test_mel_buffers_are_torchaudios(model: tuple[RandomModel, Path]) -> None:
    _, root = model
    mel = torchaudio.transforms.MelSpectrogram(SAMPLE_RATE, n_fft=FFT_SIZE, hop_length=HOP, n_mels=MEL_BANDS, power=1)
    vocos, dvae = load_file(root / VOCOS_FILE), load_file(root / DVAE_FILE)
    for tensors, prefix in ((vocos, "feature_extractor"), (dvae, "preprocessor_mel")):
        torch.testing.assert_close(tensors[f"{prefix}.mel_spec.mel_scale.fb"], mel.mel_scale.fb, atol=2e-5, rtol=0)
        torch.testing.assert_close(tensors[f"{prefix}.mel_spec.spectrogram.window"], mel.spectrogram.window, atol=1e-6, rtol=0)
    torch.testing.assert_close(vocos["head.istft.window"], torch.hann_window(FFT_SIZE), atol=1e-6, rtol=0)


@pytest.mark.parametrize("part", [upstream_embed, upstream_mel_decoder, upstream_dvae, upstream_vocos])
def test_weights_hands_out_exactly_what_upstream_loads(
    part: Callable[[RandomModel, Path], torch.nn.Module], model: tuple[RandomModel, Path]
) -> None:
    recipe, root = model
    checkpoint = open_checkpoint(root)
    ours = getattr(checkpoint, part.__name__.removeprefix("upstream_"))()
    theirs = part(recipe, root).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(torch.from_numpy(ours[name]), tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("text", TEXTS)
def test_transformers_and_tokenizers_give_the_same_ids(text: str, model: tuple[RandomModel, Path]) -> None:
    recipe, root = model
    theirs = BertTokenizerFast.from_pretrained(root / "asset/tokenizer")
    ours = Tokenizer.from_file(str(root / TOKENIZER_FILE))
    assert len(theirs) == ours.get_vocab_size() == len(recipe.tokens)
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text, add_special_tokens=False).ids
    assert theirs(text)["input_ids"] == ours.encode(text).ids


def test_special_tokens_have_the_roles_upstream_expects(model: tuple[RandomModel, Path]) -> None:
    recipe, root = model
    tokenizer = BertTokenizerFast.from_pretrained(root / "asset/tokenizer")
    roles = json.loads((root / "asset/tokenizer/special_tokens_map.json").read_text())
    assert roles == {role: getattr(tokenizer, role) for role in roles}
    assert [tokenizer.convert_tokens_to_ids(token) for token in recipe.tokens] == list(range(len(recipe.tokens)))
    assert tokenizer.pad_token_id == 0
