"""Recipes: checkpoints in upstream's layout with random weights, made in seconds.

In:    small-random or full-random, an empty folder
Out:   every file of the layout, and its SHA256SUMS
Owns:  the dimensions and the few numbers that keep activations sane
Never: torch, the network

The same arithmetic, bytes and launches as the real checkpoint, and no speech. Every random value follows from integers of a
raw counter-based stream keyed by the tensor's name, so a checkpoint is the same on every machine.
"""

import hashlib
import json
import math
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pipeline.checkpoint.layout import (
    DVAE_FILE,
    EMBED_FILE,
    GPT_CONFIG_FILE,
    GPT_FILE,
    MEL_DECODER_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    VOCOS_FILE,
    ConvStack,
    Shapes,
    dvae_shapes,
    embed_shapes,
    gpt_shapes,
    mel_decoder_shapes,
    vocos_shapes,
)
from pipeline.checkpoint.manifest import write_manifest
from pipeline.errors import CheckpointError
from pipeline.spec import CODEBOOKS, FFT_SIZE, MEL_BANDS, RMS_EPS, SAMPLE_RATE

RECIPE_VERSION = 2  # part of the folder's name: raise it with every change of a made byte
STREAMS = {"small-random": "demo", "full-random": "full-random"}  # what the random streams are keyed by

AUDIO_VOCAB = 626  # 625 codes and the end
LLAMA_VOCAB = 32  # rows of `embed_tokens`, which transformers' LlamaModel asks for and nothing uses
LLAMA_VOCAB_REAL = 32_000

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# In upstream's order, which is an interface: text refined by the model keeps the ids below id([break_0]).
CONTROL_TOKENS = (
    *("[Sasr]", "[Pasr]", "[Easr]", "[Stts]", "[Ptts]", "[Etts]", "[Sbreak]", "[Pbreak]", "[Ebreak]"),
    *("[uv_break]", "[v_break]", "[lbreak]", "[llbreak]", "[undefine]", "[laugh]", "[test]"),
    *("[spk_emb]", "[empty_spk]", "[music]", "[pure]"),
    *(f"[break_{level}]" for level in range(8)),
    *(f"[laugh_{level}]" for level in range(3)),
    *(f"[oral_{level}]" for level in range(10)),
    *(f"[speed_{level}]" for level in range(10)),
)

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Dimensions of a made checkpoint."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    llama_vocab: int
    vocabulary: tuple[str, ...]
    mel_decoder: ConvStack
    dvae_encoder: ConvStack
    dvae_decoder: ConvStack
    vocos_width: int
    vocos_mlp_width: int
    vocos_layers: int

    @property
    def tokens(self) -> tuple[str, ...]:
        """The whole text vocabulary, in the order of its ids."""
        return SPECIAL_TOKENS + self.vocabulary + CONTROL_TOKENS

    def shapes(self) -> dict[str, Shapes]:
        """File -> name -> shape."""
        gpt = gpt_shapes(layers=self.layers, width=self.width, attention_width=self.width, mlp_width=self.mlp_width)
        embed = embed_shapes(width=self.width, text_vocab=len(self.tokens), audio_vocab=AUDIO_VOCAB, codebooks=CODEBOOKS)
        return {
            DVAE_FILE: dvae_shapes(encoder=self.dvae_encoder, decoder=self.dvae_decoder),
            MEL_DECODER_FILE: mel_decoder_shapes(self.mel_decoder),
            EMBED_FILE: embed,
            VOCOS_FILE: vocos_shapes(width=self.vocos_width, mlp_width=self.vocos_mlp_width, layers=self.vocos_layers),
            GPT_FILE: gpt | {"embed_tokens.weight": (self.llama_vocab, self.width)},
        }


def size(kind: str) -> int:
    """Bytes of all tensors of a made checkpoint: what make() reports in sum."""
    return sum(4 * math.prod(shape) for shapes in RECIPES[kind].shapes().values() for shape in shapes.values())


def make(kind: str, folder: Path, on_bytes: OnBytes = lambda count: None) -> None:
    """Write a made checkpoint, byte-identical every time.

    Args:
        kind: small-random or full-random.
        on_bytes: called with the size of each tensor when it is written.

    Raises:
        CheckpointError: there is no such kind.
    """
    if kind not in RECIPES:
        raise CheckpointError(f"checkpoint {kind!r} cannot be made; allowed are {', '.join(RECIPES)}")
    recipe = RECIPES[kind]
    documents = {
        GPT_CONFIG_FILE: gpt_config(recipe),
        TOKENIZER_FILE: _tokenizer(recipe),
        TOKENIZER_CONFIG_FILE: tokenizer_config(),
        SPECIAL_TOKENS_FILE: special_tokens(),
    }
    hashes = {file: _write(folder / file, content) for file, content in documents.items()}
    for file, shapes in recipe.shapes().items():
        tensors = (_tensor(kind, file, name, shape) for name, shape in shapes.items())
        hashes[file] = _write_tensors(folder / file, shapes, tensors, on_bytes)
    write_manifest(folder, hashes)


def _write(path: Path, content: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _write_tensors(path: Path, shapes: Shapes, tensors: Iterator[NDArray[np.float32]], on_bytes: OnBytes) -> str:
    """One safetensors file, a tensor at a time: the library's own writer wants all of them in memory, twice."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say it
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # tensors begin at a multiple of 8 bytes
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for head in (len(encoded).to_bytes(8, "little"), encoded):
            file.write(head)
            digest.update(head)
        for values in tensors:
            block = values.astype("<f4", copy=False).data
            file.write(block)
            digest.update(block)
            on_bytes(block.nbytes)
    return digest.hexdigest()


# Scales. A tensor's fan-in keeps what flows through it at unit variance; the gains below are what differs.
UNIT_DEVIATION = math.sqrt(3.0)  # uniform values between -sqrt(3) and sqrt(3) have a standard deviation of 1
LOGIT_STD = 1.5  # over the vocabulary, before the temperature
CONSTANT_CHANNEL = 4.0  # residual channel 0, the same at every position: a random Llama has no bias of its own
TEXT_END_PULL = 1.2  # of [Ebreak]'s row towards that channel: one token of thousands would never come by itself
ATTENTION_GAIN = 1.5  # of queries and keys: attention that looks at some positions more than at others
RESIDUAL_GAIN = 0.5  # of what a GPT sublayer adds
GELU_GAIN = 1.5  # brings GELU's output back to unit variance
BIAS_STD = 0.1
LAYER_SCALE_STD = 0.35  # of order 0.1-1; upstream's 1e-6 would hide the layers from every test
MEL_STD = 2.0
PHASE_STD = 3.0  # rad
MAGNITUDE_STD = 0.3  # of a bin's log magnitude
MAGNITUDE_TOP = 2.5  # log magnitude at 0 Hz; with the fall below, a peak of about 0.5
MAGNITUDE_FALL = 5.0  # nepers from 0 Hz to 12 kHz: rumble is kinder than hiss


def _tensor(kind: str, file: str, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """One tensor of a made checkpoint: what its name asks for."""
    recipe = RECIPES[kind]
    key = f"{STREAMS[kind]}/v{RECIPE_VERSION}/{file}/{name}"
    leaf = name.rsplit(".", 1)[-1]
    fan_in = math.prod(shape[1:])
    if name.endswith("mel_scale.fb"):
        return mel_filters()
    if leaf == "window":
        return hann_window()
    if name == "coef":
        return np.float32(1.0) + _random(key, shape, std=0.25)
    if leaf == "gamma" or (leaf == "weight" and name.split(".")[-2].isdigit() and len(shape) == 1):
        return _random(key, shape, std=LAYER_SCALE_STD)
    if leaf == "weight" and len(shape) == 1:
        return np.float32(1.0) + _random(key, shape, std=0.1)
    if name.startswith("head.out"):
        return _vocos_head(key, shape, fan_in)
    if leaf == "bias":
        return _random(key, shape, std=BIAS_STD)
    if file == EMBED_FILE:
        return _embed_tensor(recipe, key, name, shape)
    values = _random(key, shape, std=_gain(name) / math.sqrt(fan_in))
    if leaf == "weight" and ("o_proj" in name or "down_proj" in name):
        values[0] = 0.0  # nothing writes to the constant channel
    return values


def _gain(name: str) -> float:
    if "q_proj" in name or "k_proj" in name:
        return ATTENTION_GAIN
    if "o_proj" in name or "down_proj" in name:
        return RESIDUAL_GAIN
    if "pwconv2" in name:
        return GELU_GAIN
    if name == "out_conv.weight":
        return MEL_STD
    return 1.0


def _embed_tensor(recipe: Recipe, key: str, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    if name.endswith("original0"):  # row norms: with a hidden state of unit RMS, a row's norm is its logit's deviation
        return np.float32(LOGIT_STD) + _random(key, shape, std=0.05)
    values = _random(key, shape, std=1.0)
    if name == "emb_text.weight":
        values[:, 0] = CONSTANT_CHANNEL
    elif name.startswith("emb_code"):
        values /= np.float32(math.sqrt(CODEBOOKS))
        values[:, 0] = CONSTANT_CHANNEL / CODEBOOKS
    elif name.startswith("head_code"):
        values[:, 0] = 0.0  # the end is one code of 626 in each of 4 books, so a segment lasts 626 / 4 = 156 steps or so
    else:
        values[:, 0] = 0.0
        values[recipe.tokens.index("[Ebreak]"), 0] = TEXT_END_PULL * math.sqrt(recipe.width)
    return values


def _vocos_head(key: str, shape: tuple[int, ...], fan_in: int) -> NDArray[np.float32]:
    """Rows (or their biases) of 513 log magnitudes, then of 513 phases [rad]."""
    bins = FFT_SIZE // 2 + 1
    if len(shape) == 1:
        values = _random(key, shape, std=BIAS_STD)
        values[:bins] += (MAGNITUDE_TOP - MAGNITUDE_FALL * np.arange(bins) / (bins - 1)).astype(np.float32)
        return values
    values = _random(key, shape, std=1.0 / math.sqrt(fan_in))
    values[:bins] *= np.float32(MAGNITUDE_STD)
    values[bins:] *= np.float32(PHASE_STD)
    return values


def _random(key: str, shape: tuple[int, ...], *, std: float) -> NDArray[np.float32]:
    """Uniform values of mean 0 from raw words alone, which, unlike numpy's normals, are promised never to change."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    count = math.prod(shape)
    words = np.random.Philox(key=seed).random_raw((count + 1) // 2).astype("<u8", copy=False).view("<i4")[:count]
    return (words.astype(np.float32) * np.float32(std * UNIT_DEVIATION / 2**31)).reshape(shape)


def hann_window() -> NDArray[np.float32]:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT_SIZE) / FFT_SIZE)).astype(np.float32)


def mel_filters() -> NDArray[np.float32]:
    """Triangles on the HTK mel scale, (513, 100). Source: torchaudio.functional.melscale_fbanks, its defaults."""
    bins_hz = np.linspace(0, SAMPLE_RATE / 2, FFT_SIZE // 2 + 1)
    top_mel = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    corners_hz = 700 * (10 ** (np.linspace(0, top_mel, MEL_BANDS + 2) / 2595) - 1)
    slopes = corners_hz[None, :] - bins_hz[:, None]
    gaps = np.diff(corners_hz)
    rising, falling = -slopes[:, :-2] / gaps[:-1], slopes[:, 2:] / gaps[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def gpt_config(recipe: Recipe) -> bytes:
    config = {
        "architectures": ["LlamaModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": recipe.width // recipe.heads,
        "hidden_act": "silu",
        "hidden_size": recipe.width,
        "intermediate_size": recipe.mlp_width,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": recipe.heads,
        "num_hidden_layers": recipe.layers,
        "num_key_value_heads": recipe.heads,
        "rms_norm_eps": RMS_EPS,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": False,
        "vocab_size": recipe.llama_vocab,
    }
    return _json(config)


def _tokenizer(recipe: Recipe) -> bytes:
    """BERT's word pieces: lower case, a space around every CJK character, the longest known piece first."""
    known = SPECIAL_TOKENS + recipe.vocabulary
    tokenizer = Tokenizer(
        models.WordPiece({token: index for index, token in enumerate(known)}, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, known.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_special_tokens(list(CONTROL_TOKENS))
    return f"{tokenizer.to_str(pretty=True)}\n".encode()


def tokenizer_config() -> bytes:
    return _json(
        {
            "cls_token": "[CLS]",
            "do_lower_case": True,
            "mask_token": "[MASK]",
            "model_max_length": 4096,
            "pad_token": "[PAD]",
            "sep_token": "[SEP]",
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "BertTokenizer",
            "unk_token": "[UNK]",
        }
    )


def special_tokens() -> bytes:
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return _json(dict(zip(roles, SPECIAL_TOKENS, strict=True)))


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()


def _vocabulary(*, cjk: int, pairs: bool) -> tuple[str, ...]:
    """Digits, letters and punctuation, each as a word's beginning and (but punctuation) inside it, and CJK characters.

    Args:
        cjk: how many CJK characters, the common ones first.
        pairs: two letters are a piece too, which halves the tokens of an English word.
    """
    characters = [*string.digits, *string.ascii_lowercase]
    if pairs:
        characters += [first + second for first in string.ascii_lowercase for second in string.ascii_lowercase]
    punctuation = [*string.punctuation, *"，。？！：；、…—·～「」『』（）《》【】“”‘’％"]
    return tuple(punctuation + characters + [f"##{piece}" for piece in characters] + _cjk_characters()[:cjk])


def _cjk_characters() -> list[str]:
    """GB 2312's two levels, the common characters first, then the rest of the first Unicode block."""
    rows = (bytes((row, column)) for row in range(0xB0, 0xF8) for column in range(0xA1, 0xFF))
    common = [character for pair in rows if (character := pair.decode("gb2312", errors="ignore"))]
    return list(dict.fromkeys(common + [chr(point) for point in range(0x4E00, 0x9FA6)]))


COMMON_CJK = 3755  # GB 2312's first level
REAL_TEXT_VOCAB = 21_178  # of 2Noise/ChatTTS
REAL_VOCABULARY = REAL_TEXT_VOCAB - len(SPECIAL_TOKENS) - len(CONTROL_TOKENS)

RECIPES = {
    "small-random": Recipe(
        layers=3,
        width=128,
        heads=4,
        mlp_width=384,
        llama_vocab=LLAMA_VOCAB,
        vocabulary=_vocabulary(cjk=COMMON_CJK, pairs=False),
        mel_decoder=ConvStack(inputs=64, bottleneck=32, hidden=64, outputs=64, layers=2),
        dvae_encoder=ConvStack(inputs=48, bottleneck=32, hidden=48, outputs=96, layers=2),
        dvae_decoder=ConvStack(inputs=48, bottleneck=32, hidden=48, outputs=48, layers=2),
        vocos_width=64,
        vocos_mlp_width=192,
        vocos_layers=2,
    ),
    "full-random": Recipe(
        layers=20,
        width=768,
        heads=12,
        mlp_width=3072,
        llama_vocab=LLAMA_VOCAB_REAL,
        vocabulary=_vocabulary(cjk=REAL_TEXT_VOCAB, pairs=True)[:REAL_VOCABULARY],
        mel_decoder=ConvStack(inputs=384, bottleneck=128, hidden=512, outputs=384, layers=12),
        dvae_encoder=ConvStack(inputs=512, bottleneck=128, hidden=256, outputs=1024, layers=12),
        dvae_decoder=ConvStack(inputs=512, bottleneck=128, hidden=256, outputs=512, layers=12),
        vocos_width=512,
        vocos_mlp_width=1536,
        vocos_layers=8,
    ),
}
