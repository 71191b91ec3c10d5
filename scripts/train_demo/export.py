"""Export: writes the trained networks as a checkpoint in ChatTTS's layout, in half precision.

In:    gpt.pt, vocoder.pt, dvae.pt
Out:   a folder with asset/ and SHA256SUMS, which the service loads like any other
Owns:  the tokenizer, the stand-ins for tokens that were not trained
Never: training

    python -m scripts.train_demo.export $CHATTTS_HOME/train OUT

asset/pronunciation.txt holds the phones of English words, and Chinese words with homophones; the tokenizer cuts phones into
single tokens with BERT's marks. Where that file is not read, as by ChatTTS's own package, the tokenizer's letter rules are
left. Tokens that were not taught borrow the embedding of the nearest one that was, and paces between the taught ones blend
two; the text head ends at once. CAPABILITIES lists what has an effect; the service warns a client that uses something else.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from pipeline.checkpoint.capabilities import Alignment, Capabilities, Language, capabilities_file
from pipeline.checkpoint.layout import (
    CAPABILITIES_FILE,
    DVAE_FILE,
    EMBED_FILE,
    FILES,
    GPT_CONFIG_FILE,
    GPT_FILE,
    MEL_DECODER_FILE,
    PRONUNCIATION_FILE,
    SPEAKERS_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    VOCOS_FILE,
    ConvStack,
)
from pipeline.checkpoint.manifest import file_sha256, write_manifest
from pipeline.checkpoint.random_model import (
    CONTROL_TOKENS,
    LLAMA_VOCAB,
    SPECIAL_TOKENS,
    RandomModel,
    gpt_config,
    special_tokens,
    tokenizer_config,
)
from pipeline.checkpoint.random_weights import hann_window, mel_filters
from pipeline.spec import PAUSE_TAGS, SPEED_TAGS
from pipeline.text.pronunciation import Pronunciation
from scripts.train_demo.assignments import BLEND_SPREAD, SPEAKERS
from scripts.train_demo.codes import BOOKS
from scripts.train_demo.dvae import LAYERS, STACK_WIDTH, WIDTH, Dvae
from scripts.train_demo.letter_sounds import taught_pronunciation
from scripts.train_demo.network import BOTTLENECK, GUIDED_LAYERS, CodeTable, Size, Speaking, speaker_vectors
from scripts.train_demo.phones import LETTER_RULES, STOPS, SYMBOLS
from scripts.train_demo.syllables import default_reading, parts
from scripts.train_demo.tokens import EVENTS, SPEEDS, TABLES, TOKEN_IDS
from scripts.train_demo.vocoder import Vocos

# The parts of syllables are no text: they are kept so that training can go on from the checkpoint.
ENGLISH_VOCABULARY = (*STOPS, *SYMBOLS.values(), *(f"##{symbol}" for symbol in SYMBOLS.values()), *parts())
CHINESE_STOPS = {"，": ",", "、": ",", "；": ",", "：": ",", "。": ".", "？": "?", "！": "!"}
# Token that was not trained -> the trained one whose embedding it borrows.
STAND_INS = dict.fromkeys(PAUSE_TAGS, ",") | {tag: tag for tag in EVENTS} | CHINESE_STOPS
# Not judged yet: `python -m scripts.evaluate.alignment_heads` does so, and writes the figures.
ALIGNMENT = Alignment(heads=((GUIDED_LAYERS[-1], 0),))
CAPABILITIES = Capabilities(
    control_tags=(*PAUSE_TAGS, "[laugh]", *sorted(SPEED_TAGS)), speed_tokens=True, refine=False, alignment=ALIGNMENT
)
OWN_FILES = (SPEAKERS_FILE, CAPABILITIES_FILE, PRONUNCIATION_FILE)
DEFAULT_SHARES = (0.0, 0.6, 0.4)  # of SPEAKERS: of the blends that were judged, natural and best understood
UNTAUGHT_STD = 1e-3
END_OF_REFINING = ("[Ebreak]", "[break_7]")  # the likeliest text token, and the one drawn where the end is not allowed yet
REFINE_PULL = 40.0  # of their rows along the hidden state's mean


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The networks, and what the layout states about them."""

    speaking: Speaking
    vocos: Vocos
    dvae: Dvae
    recipe: RandomModel
    languages: tuple[Language, ...]


@cache
def vocabulary(languages: Sequence[Language]) -> tuple[str, ...]:
    """Returns the tokens besides ChatTTS's own."""
    return (*ENGLISH_VOCABULARY, *CHINESE_STOPS, *characters()) if "zh" in languages else ENGLISH_VOCABULARY


@cache
def characters() -> dict[str, str]:
    """Returns the 6,763 common characters of GB 2312, each with its default reading, without those that are not taught."""
    codes = (bytes((high, low)) for high in range(0xB0, 0xF8) for low in range(0xA1, 0xFF))
    common = (code.decode("gb2312", errors="ignore") for code in codes)
    return {character: reading for character in common if character and (reading := default_reading(character)) is not None}


def load_trained(folder: Path, languages: Sequence[Language] = ("en", "zh")) -> Trained:
    """Reads the results of the training."""
    saved, vocoder, dvae_state = (torch.load(folder / f"{name}.pt", map_location="cpu") for name in ("gpt", "vocoder", "dvae"))
    size = Size(**saved["size"])
    speaking = Speaking(size, saved["model"]["mel_decoder.coef"].flatten(), TABLES)
    speaking.load_state_dict(saved["model"])
    embed = vocoder["model"]["backbone.embed.weight"]
    vocos_layers = sum(name.endswith(".gamma") for name in vocoder["model"])
    vocos = Vocos(len(embed), vocos_layers)
    vocos.load_state_dict(vocoder["model"])
    dvae = Dvae(dvae_state["model"]["mel_decoder.coef"].flatten())
    dvae.load_state_dict(dvae_state["model"])
    half = size.width // 2
    recipe = RandomModel(
        layers=size.layers,
        width=size.width,
        heads=size.heads,
        mlp_width=size.mlp_width,
        llama_vocab=LLAMA_VOCAB,
        vocabulary=partial(vocabulary, tuple(languages)),
        mel_decoder=ConvStack(half, BOTTLENECK, size.decoder_width, half, size.decoder_layers),
        dvae_encoder=ConvStack(WIDTH, BOTTLENECK, STACK_WIDTH, 2 * WIDTH, LAYERS),
        dvae_decoder=ConvStack(WIDTH, BOTTLENECK, STACK_WIDTH, WIDTH, LAYERS),
        vocos_width=len(embed),
        vocos_mlp_width=3 * len(embed),
        vocos_layers=vocos_layers,
    )
    return Trained(speaking.eval(), vocos.eval(), dvae.eval(), recipe, tuple(languages))


def export(trained: Trained, folder: Path, pronunciation: Pronunciation) -> None:
    """Writes the checkpoint."""
    documents = {
        GPT_CONFIG_FILE: gpt_config(trained.recipe),
        TOKENIZER_FILE: tokenizer(trained.recipe.vocabulary()),
        PRONUNCIATION_FILE: pronunciation.file(),
        TOKENIZER_CONFIG_FILE: tokenizer_config(),
        SPECIAL_TOKENS_FILE: special_tokens(),
        CAPABILITIES_FILE: capabilities_file(CAPABILITIES.model_copy(update={"languages": trained.languages})),
    }
    for file, content in documents.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    for file, tensors in _tensors(trained).items():
        expected = trained.recipe.shapes()[file]
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != expected:
            raise ValueError(f"{file}: not the layout's tensors: {sorted(set(shapes.items()) ^ set(expected.items()))[:4]}")
        halves = {name: tensors[name].detach().half().contiguous() for name in expected}
        save_file(halves, folder / file, metadata={"format": "pt"})
    np.save(folder / SPEAKERS_FILE, speaker_statistics(trained.recipe.width))
    write_manifest(folder, {file: file_sha256(folder / file) for file in (*FILES, *OWN_FILES)})


def tokenizer(taught: Sequence[str]) -> bytes:
    """Returns a tokenizer with BERT's word pieces over phones, and one token per Chinese character."""
    known = (*SPECIAL_TOKENS, *taught)
    bert = Tokenizer(models.WordPiece({token: index for index, token in enumerate(known)}, unk_token="[UNK]"))
    letters = [normalizers.Replace(Regex(pattern), sound) for pattern, sound in LETTER_RULES]
    bert.normalizer = normalizers.Sequence(
        [normalizers.BertNormalizer(handle_chinese_chars=True, strip_accents=False, lowercase=True), *letters]
    )
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, known.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    bert.decoder = decoders.WordPiece(prefix="##")
    bert.add_special_tokens(list(SPECIAL_TOKENS))
    bert.add_special_tokens(list(CONTROL_TOKENS))
    return bert.to_str().encode()


def speaker_statistics(width: int) -> NDArray[np.float16]:
    """Returns (2, width): standard deviation and mean of the speakers' vectors, as the taught blends were drawn."""
    statistics = np.zeros((2, width), np.float16)
    statistics[0, : len(SPEAKERS)], statistics[1, : len(SPEAKERS)] = BLEND_SPREAD, len(SPEAKERS) ** -0.5
    return statistics


def _tensors(trained: Trained) -> dict[str, dict[str, Tensor]]:
    speaking = trained.speaking
    width = speaking.size.width
    gpt = {name: value for name, value in speaking.state_dict().items() if name.startswith(("layers.", "norm."))}
    gpt["embed_tokens.weight"] = torch.zeros(LLAMA_VOCAB, width)
    return {
        GPT_FILE: gpt,
        EMBED_FILE: _embed(trained),
        MEL_DECODER_FILE: speaking.mel_decoder.state_dict(),
        DVAE_FILE: _dvae(trained.dvae),
        VOCOS_FILE: trained.vocos.state_dict()
        | {"head.istft.window": torch.from_numpy(hann_window())}
        | _features("feature_extractor"),
    }


def _features(at: str) -> dict[str, Tensor]:
    return {
        f"{at}.mel_spec.spectrogram.window": torch.from_numpy(hann_window()),
        f"{at}.mel_spec.mel_scale.fb": torch.from_numpy(mel_filters()),
    }


def _dvae(dvae: Dvae) -> dict[str, Tensor]:
    state = {re.sub(r"^mel_decoder\.", "", name): value for name, value in dvae.state_dict().items()}
    projected = re.compile(r"(project_in|project_out)\.(\d)\.(.*)")
    return {projected.sub(r"vq_layer.quantizer.rvqs.\2.\1.\3", name): value for name, value in state.items()} | _features(
        "preprocessor_mel"
    )


def _embed(trained: Trained) -> dict[str, Tensor]:
    speaking, tokens = trained.speaking, trained.recipe.tokens
    width = speaking.size.width
    text = UNTAUGHT_STD * torch.randn(len(tokens), width, generator=torch.Generator().manual_seed(0))
    readings, learned = characters() if "zh" in trained.languages else {}, speaking.text_rows().detach()
    for row, token in enumerate(tokens):
        taught = STAND_INS.get(token, token)
        if (index := TOKEN_IDS.get(readings.get(taught, taught))) is not None:
            text[row] = learned[index]
    for level in range(len(SPEED_TAGS)):
        text[tokens.index(f"[speed_{level}]")] = _pace(level, learned)
    text[tokens.index("[empty_spk]")] = speaker_vectors(torch.tensor([DEFAULT_SHARES]), width)[0]
    tensors = {"emb_text.weight": text}
    heads = {"head_text": _text_head(trained, text)}
    for book in range(BOOKS):
        embedding, head = speaking.emb_code[book], speaking.head_code[book]
        assert isinstance(embedding, CodeTable)
        assert isinstance(head, CodeTable)
        tensors[f"emb_code.{book}.weight"] = embedding.rows()
        heads[f"head_code.{book}"] = head.rows()
    for name, rows in heads.items():  # weight norm: length and direction of each row
        tensors[f"{name}.parametrizations.weight.original0"] = rows.norm(dim=1, keepdim=True)
        tensors[f"{name}.parametrizations.weight.original1"] = rows
    return tensors


def _pace(level: int, learned: Tensor) -> Tensor:
    """Returns the embedding (width,) of [speed_level]: a blend of the two trained paces that it lies between."""
    taught = sorted((int(token.removeprefix("[speed_").removesuffix("]")), TOKEN_IDS[token]) for token in SPEEDS)
    inner = min(max(level, taught[0][0]), taught[-1][0])
    (below, first), (above, second) = next(pair for pair in pairwise(taught) if inner <= pair[1][0])
    return torch.lerp(learned[first], learned[second], (inner - below) / (above - below))


def _text_head(trained: Trained, text: Tensor) -> Tensor:
    """Returns a head that draws the end token for every hidden state of a refine prompt."""
    tokens = trained.recipe.tokens
    prompt = [tokens.index(token) for token in ("[Sbreak]", "[Pbreak]", "[oral_2]", "[laugh_0]", "[break_4]")]
    with torch.no_grad():
        hidden, _ = trained.speaking.trunk(text[prompt][None])
    towards = torch.nn.functional.normalize(hidden[0, -1], dim=0)
    rows = UNTAUGHT_STD * torch.randn(text.shape, generator=torch.Generator().manual_seed(1))
    for share, token in zip((1.0, 0.5), END_OF_REFINING, strict=True):
        rows[tokens.index(token)] = share * REFINE_PULL * towards
    return rows


def main() -> None:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description="Write the trained voice as a checkpoint.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--languages", nargs="+", choices=("en", "zh"), default=("en", "zh"), help="that it is to speak")
    args = parser.parse_args()
    languages = tuple(args.languages)
    export(load_trained(args.folder, languages), args.out, taught_pronunciation(languages))
    total = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    print(f"{args.out}: {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
