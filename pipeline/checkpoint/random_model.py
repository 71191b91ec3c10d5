"""Random model: the dimensions, vocabulary and documents of the checkpoints that are generated with random weights.

Out:   RANDOM_MODELS; config.json and the tokenizer's files as bytes
Owns:  the dimensions of small-random and full-random
Never: torch, files, weights (random_weights.py)
"""

import importlib
import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.checkpoint.layout import (
    DVAE_FILE,
    EMBED_FILE,
    GPT_FILE,
    MEL_DECODER_FILE,
    VOCOS_FILE,
    ConvStack,
    Shapes,
    dvae_shapes,
    embed_shapes,
    gpt_shapes,
    mel_decoder_shapes,
    vocos_shapes,
)
from pipeline.spec import CODEBOOKS, RMS_EPS

AUDIO_VOCAB = 626  # 625 codes and the end
LLAMA_VOCAB = 32  # rows of `embed_tokens`, which transformers' LlamaModel requires and nothing uses
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


@dataclass(frozen=True, slots=True)
class RandomModel:
    """Dimensions of a generated checkpoint."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    llama_vocab: int
    vocabulary: Callable[[], tuple[str, ...]]
    mel_decoder: ConvStack
    dvae_encoder: ConvStack
    dvae_decoder: ConvStack
    vocos_width: int
    vocos_mlp_width: int
    vocos_layers: int

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens of the text vocabulary, in the order of their ids."""
        return SPECIAL_TOKENS + self.vocabulary() + CONTROL_TOKENS

    def shapes(self) -> dict[str, Shapes]:
        """Returns file -> tensor name -> shape."""
        gpt = gpt_shapes(layers=self.layers, width=self.width, attention_width=self.width, mlp_width=self.mlp_width)
        embed = embed_shapes(width=self.width, text_vocab=len(self.tokens), audio_vocab=AUDIO_VOCAB, codebooks=CODEBOOKS)
        return {
            DVAE_FILE: dvae_shapes(encoder=self.dvae_encoder, decoder=self.dvae_decoder),
            MEL_DECODER_FILE: mel_decoder_shapes(self.mel_decoder),
            EMBED_FILE: embed,
            VOCOS_FILE: vocos_shapes(width=self.vocos_width, mlp_width=self.vocos_mlp_width, layers=self.vocos_layers),
            GPT_FILE: gpt | {"embed_tokens.weight": (self.llama_vocab, self.width)},
        }


def gpt_config(model: RandomModel) -> bytes:
    config = {
        "architectures": ["LlamaModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": model.width // model.heads,
        "hidden_act": "silu",
        "hidden_size": model.width,
        "intermediate_size": model.mlp_width,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.heads,
        "rms_norm_eps": RMS_EPS,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": False,
        "vocab_size": model.llama_vocab,
    }
    return _json(config)


def tokenizer(model: RandomModel) -> bytes:
    """Returns a tokenizer of BERT's word pieces: lower case, spaces around CJK characters, the longest known piece first."""
    library: Any = importlib.import_module("tokenizers")  # here: every process reads RANDOM_MODELS, to find its checkpoint
    known = SPECIAL_TOKENS + model.vocabulary()
    tokenizer = library.Tokenizer(
        library.models.WordPiece(
            {token: index for index, token in enumerate(known)}, unk_token="[UNK]", max_input_chars_per_word=100
        )
    )
    tokenizer.normalizer = library.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, known.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = library.decoders.WordPiece(prefix="##")
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


def _vocabulary(*, cjk: int, pairs: bool, size: int | None = None) -> tuple[str, ...]:
    """Returns punctuation, digits and letters, the latter two also as pieces inside a word, and CJK characters.

    Args:
        cjk: number of CJK characters, the common ones first.
        pairs: pairs of letters are pieces too, which halves the tokens of an English word.
        size: how many tokens to keep; None: all.
    """
    characters = [*string.digits, *string.ascii_lowercase]
    if pairs:
        characters += [first + second for first in string.ascii_lowercase for second in string.ascii_lowercase]
    punctuation = [*string.punctuation, *"，。？！：；、…—·～「」『』（）《》【】“”‘’％"]
    return tuple(punctuation + characters + [f"##{piece}" for piece in characters] + _cjk_characters()[:cjk])[:size]


def _cjk_characters() -> list[str]:
    """Returns the two levels of GB 2312, the common characters first, then the rest of the first Unicode block."""
    rows = (bytes((row, column)) for row in range(0xB0, 0xF8) for column in range(0xA1, 0xFF))
    common = [character for pair in rows if (character := pair.decode("gb2312", errors="ignore"))]
    return list(dict.fromkeys(common + [chr(point) for point in range(0x4E00, 0x9FA6)]))


COMMON_CJK = 3755  # GB 2312's first level
REAL_TEXT_VOCAB = 21_178  # of 2Noise/ChatTTS
REAL_VOCABULARY = REAL_TEXT_VOCAB - len(SPECIAL_TOKENS) - len(CONTROL_TOKENS)
RANDOM_MODELS = {
    "small-random": RandomModel(
        layers=3,
        width=128,
        heads=4,
        mlp_width=384,
        llama_vocab=LLAMA_VOCAB,
        vocabulary=partial(_vocabulary, cjk=COMMON_CJK, pairs=False),
        mel_decoder=ConvStack(inputs=64, bottleneck=32, hidden=64, outputs=64, layers=2),
        dvae_encoder=ConvStack(inputs=48, bottleneck=32, hidden=48, outputs=96, layers=2),
        dvae_decoder=ConvStack(inputs=48, bottleneck=32, hidden=48, outputs=48, layers=2),
        vocos_width=64,
        vocos_mlp_width=192,
        vocos_layers=2,
    ),
    "full-random": RandomModel(
        layers=20,
        width=768,
        heads=12,
        mlp_width=3072,
        llama_vocab=LLAMA_VOCAB_REAL,
        vocabulary=partial(_vocabulary, cjk=REAL_TEXT_VOCAB, pairs=True, size=REAL_VOCABULARY),
        mel_decoder=ConvStack(inputs=384, bottleneck=128, hidden=512, outputs=384, layers=12),
        dvae_encoder=ConvStack(inputs=512, bottleneck=128, hidden=256, outputs=1024, layers=12),
        dvae_decoder=ConvStack(inputs=512, bottleneck=128, hidden=256, outputs=512, layers=12),
        vocos_width=512,
        vocos_mlp_width=1536,
        vocos_layers=8,
    ),
}
