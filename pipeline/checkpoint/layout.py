"""Layout: the names and shapes of all tensors of a ChatTTS checkpoint.

In:    dimensions
Out:   name -> shape, one table per file
Never: torch, files

Names are those of the ChatTTS 0.2.5 package; tests/parity/test_checkpoint_layout.py compares each table with its modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pipeline.spec import FFT_SIZE, MEL_BANDS, VocoderSize

GPT_CONFIG_FILE = "asset/gpt/config.json"
GPT_FILE = "asset/gpt/model.safetensors"
EMBED_FILE = "asset/Embed.safetensors"
MEL_DECODER_FILE = "asset/Decoder.safetensors"
DVAE_FILE = "asset/DVAE.safetensors"
VOCOS_FILE = "asset/Vocos.safetensors"
TOKENIZER_FILE = "asset/tokenizer/tokenizer.json"
TOKENIZER_CONFIG_FILE = "asset/tokenizer/tokenizer_config.json"
SPECIAL_TOKENS_FILE = "asset/tokenizer/special_tokens_map.json"
# Files that only this project's checkpoints have: standard deviation and mean of the speakers it was trained on, what it was
# trained for (pipeline/checkpoint/capabilities.py), and how it says words (pipeline/text/pronunciation.py).
SPEAKERS_FILE = "asset/speaker_stat.npy"
CAPABILITIES_FILE = "asset/taught.json"
PRONUNCIATION_FILE = "asset/pronunciation.txt"
# A smaller mel decoder and Vocos that were learned from those above (scripts/distill_vocoder.py), in their layout.
SMALL_FILES = ("asset/small/Decoder.safetensors", "asset/small/Vocos.safetensors")
MANIFEST_FILE = "SHA256SUMS"  # at the root, in the format of sha256sum

FILES = (
    DVAE_FILE,
    MEL_DECODER_FILE,
    EMBED_FILE,
    VOCOS_FILE,
    GPT_CONFIG_FILE,
    GPT_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
)
# Only transformers reads the other two, and transformers 5 no longer writes one of them.
NEEDED_FILES = tuple(file for file in FILES if file not in (SPECIAL_TOKENS_FILE, TOKENIZER_CONFIG_FILE))

VQ_GROUPS = 2  # the quantiser splits its width in two and quantises each half twice: 4 codes
VQ_LEVELS = (5, 5, 5, 5)  # 5**4 = 625 values per code
# Scale of each refinement, per digit: one interval of the code before, over its range.
# vector_quantize_pytorch defined it this way when ChatTTS's weights were trained. Since its release 1.27 it is 1 / level,
# which decodes every second code of those weights 20 % too small; so pyproject.toml limits the package's version.
RESIDUAL_SCALES = tuple(1 / (level - 1) for level in VQ_LEVELS)
KERNEL = 7  # frames of a ConvNeXt convolution
DILATION = 2  # of the mel decoder's and the encoder's depthwise convolutions; not stored in a checkpoint

Shapes = dict[str, tuple[int, ...]]
VOCODER_FILES: dict[VocoderSize, tuple[str, str]] = {"full": (MEL_DECODER_FILE, VOCOS_FILE), "small": SMALL_FILES}
Stored = TypeVar("Stored")


@dataclass(frozen=True, slots=True)
class ConvStack:
    """Dimensions of upstream's DVAEDecoder: two convolutions, ConvNeXt layers, one convolution."""

    inputs: int
    bottleneck: int
    hidden: int
    outputs: int
    layers: int
    mlp_width: int | None = None
    """of a ConvNeXt layer; None: upstream's, four times its own"""


def gpt_shapes(*, layers: int, width: int, attention_width: int, mlp_width: int) -> Shapes:
    """Returns the tensors of asset/gpt/model.safetensors, without `embed_tokens`, which nothing uses.

    Args:
        attention_width: heads x head_dim.
    """
    shapes: Shapes = {}
    for layer in range(layers):
        at = f"layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (width,),
            f"{at}.self_attn.q_proj.weight": (attention_width, width),
            f"{at}.self_attn.k_proj.weight": (attention_width, width),
            f"{at}.self_attn.v_proj.weight": (attention_width, width),
            f"{at}.self_attn.o_proj.weight": (width, attention_width),
            f"{at}.post_attention_layernorm.weight": (width,),
            f"{at}.mlp.gate_proj.weight": (mlp_width, width),
            f"{at}.mlp.up_proj.weight": (mlp_width, width),
            f"{at}.mlp.down_proj.weight": (width, mlp_width),
        }
    return shapes | {"norm.weight": (width,)}


def embed_shapes(*, width: int, text_vocab: int, audio_vocab: int, codebooks: int) -> Shapes:
    """Returns those of asset/Embed.safetensors; heads are weight-norm pairs (original0: row norms, original1: rows)."""
    shapes: Shapes = {"emb_text.weight": (text_vocab, width)}
    shapes |= {f"emb_code.{codebook}.weight": (audio_vocab, width) for codebook in range(codebooks)}
    heads = {"head_text": text_vocab} | {f"head_code.{codebook}": audio_vocab for codebook in range(codebooks)}
    for head, rows in heads.items():
        shapes[f"{head}.parametrizations.weight.original0"] = (rows, 1)
        shapes[f"{head}.parametrizations.weight.original1"] = (rows, width)
    return shapes


def mel_decoder_shapes(stack: ConvStack) -> Shapes:
    """Returns those of asset/Decoder.safetensors: hidden states to mel."""
    return {
        "coef": (1, MEL_BANDS, 1),
        **_conv_stack_shapes("decoder", stack),
        "out_conv.weight": (MEL_BANDS, stack.outputs, 3),
    }


def dvae_shapes(*, encoder: ConvStack, decoder: ConvStack) -> Shapes:
    """Returns those of asset/DVAE.safetensors: recordings to codes, and codes to mel."""
    width = encoder.inputs
    group_width = encoder.outputs // VQ_GROUPS
    shapes = mel_decoder_shapes(decoder) | {
        "downsample_conv.0.weight": (width, MEL_BANDS, 3),
        "downsample_conv.0.bias": (width,),
        "downsample_conv.2.weight": (width, width, 4),
        "downsample_conv.2.bias": (width,),
        **_mel_shapes("preprocessor_mel"),
        **_conv_stack_shapes("encoder", encoder),
    }
    for group in range(VQ_GROUPS):
        at = f"vq_layer.quantizer.rvqs.{group}"
        shapes |= {
            f"{at}.project_in.weight": (len(VQ_LEVELS), group_width),
            f"{at}.project_in.bias": (len(VQ_LEVELS),),
            f"{at}.project_out.weight": (group_width, len(VQ_LEVELS)),
            f"{at}.project_out.bias": (group_width,),
        }
    return shapes


def vocos_shapes(*, width: int, mlp_width: int, layers: int) -> Shapes:
    """Returns those of asset/Vocos.safetensors: mel to waveform."""
    shapes: Shapes = {
        **_mel_shapes("feature_extractor"),
        "backbone.embed.weight": (width, MEL_BANDS, KERNEL),
        "backbone.embed.bias": (width,),
        "backbone.norm.weight": (width,),
        "backbone.norm.bias": (width,),
        "backbone.final_layer_norm.weight": (width,),
        "backbone.final_layer_norm.bias": (width,),
        "head.out.weight": (FFT_SIZE + 2, width),  # magnitudes of 513 bins, then their phases
        "head.out.bias": (FFT_SIZE + 2,),
        "head.istft.window": (FFT_SIZE,),
    }
    for layer in range(layers):
        at = f"backbone.convnext.{layer}"
        shapes |= {f"{at}.gamma": (width,), **_convnext_shapes(at, width, mlp_width)}
    return shapes


def _conv_stack_shapes(prefix: str, stack: ConvStack) -> Shapes:
    shapes: Shapes = {
        f"{prefix}.conv_in.0.weight": (stack.bottleneck, stack.inputs, 3),
        f"{prefix}.conv_in.0.bias": (stack.bottleneck,),
        f"{prefix}.conv_in.2.weight": (stack.hidden, stack.bottleneck, 3),
        f"{prefix}.conv_in.2.bias": (stack.hidden,),
        f"{prefix}.conv_out.weight": (stack.outputs, stack.hidden, 1),
    }
    for layer in range(stack.layers):
        at = f"{prefix}.decoder_block.{layer}"
        shapes |= {f"{at}.weight": (stack.hidden,), **_convnext_shapes(at, stack.hidden, stack.mlp_width or 4 * stack.hidden)}
    return shapes


def _convnext_shapes(prefix: str, width: int, mlp_width: int) -> Shapes:
    return {
        f"{prefix}.dwconv.weight": (width, 1, KERNEL),
        f"{prefix}.dwconv.bias": (width,),
        f"{prefix}.norm.weight": (width,),
        f"{prefix}.norm.bias": (width,),
        f"{prefix}.pwconv1.weight": (mlp_width, width),
        f"{prefix}.pwconv1.bias": (mlp_width,),
        f"{prefix}.pwconv2.weight": (width, mlp_width),
        f"{prefix}.pwconv2.bias": (width,),
    }


def _mel_shapes(prefix: str) -> Shapes:
    return {
        f"{prefix}.mel_spec.spectrogram.window": (FFT_SIZE,),
        f"{prefix}.mel_spec.mel_scale.fb": (FFT_SIZE // 2 + 1, MEL_BANDS),
    }


def below(tensors: Mapping[str, Stored], prefix: str) -> dict[str, Stored]:
    """Returns the tensors whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
