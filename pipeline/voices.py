"""Voices: a voice's name to its speaker embedding, and to a reference sample where there is one.

In:    a name: `default`, one of the catalogue's names or aliases, or seed:<0 .. 4294967295>
Out:   Voice
Owns:  the catalogue (read-only once loaded)
Never: torch, requests, the checkpoint; it is told the width of an embedding
"""

import difflib
import lzma
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pybase16384
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from pipeline.config import StrictModel
from pipeline.errors import ConfigError, UnknownVoice
from pipeline.model.spec import CODEBOOKS
from pipeline.strict_yaml import parse_yaml
from pipeline.types import Voice

DEFAULT = "default"
MAX_SEED = 2**32 - 1
MAX_CODE = 625  # EOS included: upstream's encoder never writes it, and its decoder does not mind
MAX_SAMPLE_STEPS = 1_500  # 32 s; more would leave a prompt no room for text
MAX_CATALOGUE_BYTES = 4 * 2**20

# Row 0: standard deviation, row 1: mean of every embedding dimension of 2Noise/ChatTTS, float16.
# Source: ChatTTS 0.2.5, ChatTTS/config/config.py, Config.spk_stat, decoded as ChatTTS/model/speaker.py does.
_STATISTICS_FILE = Path(__file__).with_name("speaker_stat.npy")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SEED_NAME = re.compile(r"seed:(0|[1-9][0-9]{0,9})")
_SHOWN_CHARACTERS = 64
_LZMA_FILTERS = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**20}]  # raw LZMA2 has no header; 1 MiB covers all we accept
_LZMA_OVERHEAD = 256  # bytes that incompressible data may grow by
_BITS_PER_CHARACTER = 14  # of base16384


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """One line of the catalogue, for people."""

    name: str
    aliases: tuple[str, ...]
    languages: tuple[str, ...]
    description: str
    origin: str
    """built-in, seed:<n> or embedding"""


class _VoiceEntry(StrictModel):
    """One voice as the operator writes it."""

    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    embedding: str | None = Field(None, description="a speaker string of ChatTTS")
    sample: str | None = Field(None, description="a prompt string of ChatTTS: the codes of a reference recording")
    sample_text: str = Field("", max_length=1000, description="what is said in the reference recording")
    languages: tuple[str, ...] = ()
    description: str = ""
    aliases: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _is_one_voice(self) -> "_VoiceEntry":
        if (self.seed is None) == (self.embedding is None):
            raise ValueError("give either seed or embedding")
        if (self.sample is None) == bool(self.sample_text):
            raise ValueError("sample and sample_text belong together")
        return self


class _CatalogueFile(StrictModel):
    voices: dict[str, _VoiceEntry] = Field(default_factory=dict)


class VoiceCatalogue:
    """Every voice this service knows, by name."""

    def __init__(self, voices: dict[str, Voice], infos: tuple[VoiceInfo, ...], width: int) -> None:
        """
        Args:
            voices: by name and by alias.
            width: numbers in an embedding.
        """
        self._voices = voices
        self._infos = infos
        self._width = width

    @classmethod
    def load(cls, path: Path | None, width: int) -> "VoiceCatalogue":
        """Read a catalogue file; with no path there are `default` and the seed voices.

        Raises:
            ConfigError: the file is not a strict catalogue, or one of its strings is not what it claims to be.
        """
        entries = {} if path is None else _read(path)
        voices: dict[str, Voice] = {}
        infos: list[VoiceInfo] = []
        for name, entry in entries.items():
            where = f"{path}: voices.{name}"
            voice = _voice(name, entry, width, where)
            for key in (name, *entry.aliases):
                if not _NAME.fullmatch(key):
                    raise ConfigError(f"{where}: the name {key!r} must match {_NAME.pattern}")
                if key in voices:
                    raise ConfigError(f"{where}: the name {key!r} already belongs to the voice {voices[key].name!r}")
                voices[key] = voice
            origin = "embedding" if entry.seed is None else f"seed:{entry.seed}"
            infos.append(VoiceInfo(name, entry.aliases, entry.languages, entry.description, origin))
        if DEFAULT not in voices:
            voices[DEFAULT] = Voice(DEFAULT, None)
            infos.insert(0, VoiceInfo(DEFAULT, (), ("zh", "en"), "ChatTTS without a speaker embedding", "built-in"))
        return cls(voices, tuple(infos), width)

    def get(self, name: str) -> Voice:
        """The voice of that name or alias, or the one a `seed:<n>` draws.

        Raises:
            UnknownVoice: says which names are near.
        """
        if name in self._voices:
            return self._voices[name]
        seeded = _SEED_NAME.fullmatch(name)
        if seeded and int(seeded[1]) <= MAX_SEED:
            return Voice(name, draw_embedding(int(seeded[1]), self._width))
        raise UnknownVoice(self._unknown(name), param="voice")

    def list(self) -> tuple[VoiceInfo, ...]:
        """Every named voice. Seeds are not listed: there are 4,294,967,296 of them."""
        return self._infos

    def _unknown(self, name: str) -> str:
        shown = name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "..."
        near = difflib.get_close_matches(shown.lower(), self._voices, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "."
        return f"there is no voice {shown!r}{hint} Known are the names of GET /v1/audio/voices and seed:<0 .. {MAX_SEED}>"


def draw_embedding(seed: int, width: int) -> NDArray[np.float16]:
    """The speaker a seed stands for: (width,) float16, the bits upstream draws on a CPU after torch.manual_seed(seed).

    Checkpoints of another width than 2Noise/ChatTTS have no speaker statistics: mean 0, standard deviation 1.

    Source: ChatTTS/model/speaker.py `_sample_random`.
    """
    std, mean = _statistics(width)
    return (standard_normal(seed, width) * std + mean).astype(np.float16)


def standard_normal(seed: int, count: int) -> NDArray[np.float16]:
    """What `torch.randn(count, dtype=torch.float16)` gives on a CPU after `torch.manual_seed(seed)`, bit for bit.

    torch fills with uniforms of 11 bits, one 32-bit word of its Mersenne Twister each, then turns blocks of 16
    into normals by Box-Muller (0..7: cosines, 8..15: sines), rounding every intermediate value to float16.
    A last, incomplete block is drawn anew over the last 16 numbers.
    """
    assert count >= _BLOCK, "torch draws fewer numbers in another way"
    words = np.random.RandomState(seed)  # the legacy generator: its stream is frozen by numpy's policy
    normals = _uniforms(words, count)
    whole = count - count % _BLOCK
    normals[:whole] = _box_muller(normals[:whole].reshape(-1, _BLOCK)).reshape(-1)
    if whole < count:
        normals[-_BLOCK:] = _box_muller(_uniforms(words, _BLOCK).reshape(1, _BLOCK))[0]
    return normals


_BLOCK = 16


def _uniforms(words: np.random.RandomState, count: int) -> NDArray[np.float16]:
    bits = words.randint(0, 2**32, size=count, dtype=np.uint32) & 0x7FF
    return (bits / 2048).astype(np.float16)


def _box_muller(uniforms: NDArray[np.float16]) -> NDArray[np.float16]:
    """(blocks, 16) uniforms to (blocks, 16) standard normals."""
    first, second = uniforms[:, : _BLOCK // 2], uniforms[:, _BLOCK // 2 :]
    logarithm = _half(np.log(_wide(_half(1 - _wide(first)))))
    radius = _half(np.sqrt(_wide(_half(-2 * _wide(logarithm)))))
    angle = _wide(_half(2 * np.pi * _wide(second)))
    normals = np.concatenate([radius * _half(np.cos(angle)), radius * _half(np.sin(angle))], axis=1)
    # torch multiplies by the standard deviation and adds the mean, 1 and 0: -0 becomes +0.
    return _half(normals + np.float16(0))


def _wide(values: NDArray[np.float16]) -> NDArray[np.float64]:
    # float64, because numpy's float32 logarithm and cosine differ in the last bit from machine to machine.
    return values.astype(np.float64)


def _half(values: NDArray[Any]) -> NDArray[np.float16]:
    return values.astype(np.float16)


def _statistics(width: int) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    """Standard deviation and mean, (width,) each."""
    statistics: NDArray[np.float16] = np.load(_STATISTICS_FILE, allow_pickle=False)
    if statistics.shape[1] != width:
        return np.ones(width, np.float16), np.zeros(width, np.float16)
    return statistics[0], statistics[1]


def decode_embedding(text: str, width: int) -> NDArray[np.float16]:
    """A speaker string of ChatTTS: base16384 over raw LZMA2 over float16.

    Raises:
        ValueError: says what is wrong; never inflates beyond `width` numbers.
    """
    size = 2 * width
    embedding = np.frombuffer(_inflate(_decode_base16384(text, size), size), "<f2").astype(np.float16)
    if not np.isfinite(embedding).all():
        raise ValueError("the embedding has infinite or undefined numbers")
    if not embedding.any():
        raise ValueError("the embedding is all zeros")
    return embedding


def decode_sample(text: str) -> NDArray[np.int64]:
    """A prompt string of ChatTTS, (steps, 4): two 16-bit sizes, then raw LZMA2 over 16-bit codes, codebook by codebook.

    Raises:
        ValueError: says what is wrong; never inflates beyond MAX_SAMPLE_STEPS.
    """
    packed = _decode_base16384(text, 2 * CODEBOOKS * MAX_SAMPLE_STEPS)
    if len(packed) < 4:
        raise ValueError("the sample is cut off before its sizes")
    codebooks, steps = (int(size) for size in np.frombuffer(packed[:4], "<u2"))
    if codebooks != CODEBOOKS or not 1 <= steps <= MAX_SAMPLE_STEPS:
        raise ValueError(
            f"the sample has {codebooks} codebooks and {steps} steps; allowed are {CODEBOOKS} and 1 to {MAX_SAMPLE_STEPS}"
        )
    codes = np.frombuffer(_inflate(packed[4:], 2 * codebooks * steps), "<u2").reshape(codebooks, steps)
    if codes.max() > MAX_CODE:
        raise ValueError(f"the sample has the code {codes.max()}; codes end at {MAX_CODE}")
    return np.ascontiguousarray(codes.T, np.int64)


def _decode_base16384(text: str, payload: int) -> bytes:
    """The packed bytes, at most what `payload` bytes can take."""
    longest = (payload + _LZMA_OVERHEAD) * 8 // _BITS_PER_CHARACTER + 2
    if not 1 <= len(text) <= longest:
        raise ValueError(f"the string has {len(text)} characters; allowed are 1 to {longest}")
    # The C decoder takes anything for base16384; its alphabet is U+4E00 .. U+8DFF, and U+3D01 .. U+3D06 at the end.
    digits = text[:-1] if "\u3d01" <= text[-1] <= "\u3d06" else text
    if not all("\u4e00" <= character <= "\u8dff" for character in digits):
        raise ValueError("the string is not base16384: it has characters outside U+4E00 .. U+8DFF")
    try:
        return bytes(pybase16384.decode_from_string(text))
    except Exception as error:  # the binding raises whatever its C code reports
        raise ValueError(f"the string is not base16384: {error}") from error


def _inflate(packed: bytes, size: int) -> bytes:
    """Exactly `size` bytes of raw LZMA2; the decoder is never let beyond them, whatever the stream holds."""
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_LZMA_FILTERS)
    try:
        content = decoder.decompress(packed, max_length=size + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"the packed bytes are not LZMA2: {error}") from error
    if len(content) != size:
        found = f"more than {size}" if len(content) > size else str(len(content))
        raise ValueError(f"the unpacked string has {found} bytes; expected are {size}")
    return content


def _voice(name: str, entry: _VoiceEntry, width: int, where: str) -> Voice:
    try:
        if entry.embedding is not None:
            embedding = decode_embedding(entry.embedding, width)
        else:
            assert entry.seed is not None
            embedding = draw_embedding(entry.seed, width)
        sample = None if entry.sample is None else decode_sample(entry.sample)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return Voice(name, embedding, sample, entry.sample_text)


def _read(path: Path) -> dict[str, _VoiceEntry]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: the voice catalogue cannot be read: {error.strerror}") from error
    if len(content) > MAX_CATALOGUE_BYTES:
        raise ConfigError(f"{path}: a voice catalogue of {len(content)} bytes; the limit is {MAX_CATALOGUE_BYTES}")
    try:
        tree = parse_yaml(content.decode())
        return _CatalogueFile.model_validate({} if tree is None else tree).voices
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {_explain(dict(one))}" for one in error.errors())) from error


def _explain(error: dict[str, Any]) -> str:
    """One line of a pydantic report: the key's path, what was found, the nearest key."""
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] != "extra_forbidden":
        return f"{place or 'the file'}: {error['msg']}"
    allowed = list((_CatalogueFile if len(error["loc"]) == 1 else _VoiceEntry).model_fields)
    near = difflib.get_close_matches(str(error["loc"][-1]), allowed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}"
    return f"{place}: unknown key; {hint}"
