"""Weights: reads and checks a checkpoint's tensors; the only module that opens them.

In:    a checkpoint's folder (pipeline/checkpoint/locate.py finds it)
Out:   GptSpec, and one dictionary of float32 arrays per part, under upstream's names
Owns:  nothing: every call reads its part again
Never: modules, devices, the network, torch (in_torch.py)

With a SHA256SUMS, the bytes that are parsed are those that were hashed. They are read into memory of this process: a file that
changes later changes nothing.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from pipeline.bfloat16 import widened
from pipeline.checkpoint.layout import (
    DVAE_FILE,
    EMBED_FILE,
    GPT_CONFIG_FILE,
    GPT_FILE,
    SMALL_FILES,
    VOCODER_FILES,
    VQ_GROUPS,
    ConvStack,
    Shapes,
    dvae_shapes,
    embed_shapes,
    gpt_shapes,
    mel_decoder_shapes,
    vocos_shapes,
)
from pipeline.checkpoint.manifest import read_verified
from pipeline.checkpoint.packed_tensors import unpacked_shapes, widen_int4, widen_int8
from pipeline.errors import CheckpointError
from pipeline.spec import CODE_BITS, CODEBOOKS, MEL_FRAMES_PER_STEP, TEXT_TOKEN_BITS, VocoderSize

Tensors = dict[str, NDArray[np.float32]]

DEFAULT_ROPE_THETA = 10_000.0  # transformers' default
STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
"""types of numbers in a file -> how numpy reads them"""
PACKED: dict[str, np.dtype[Any]] = {"I8": np.dtype("i1"), "U8": np.dtype("u1"), "I32": np.dtype("<i4")}
"""the same of packed tensors"""
REMEDY = "generate or fetch the checkpoint again"


@dataclass(frozen=True, slots=True)
class GptSpec:
    """Dimensions of the GPT acoustic model."""

    layers: int
    width: int
    heads: int
    head_dim: int
    mlp_width: int
    max_positions: int
    rope_theta: float
    rms_eps: float
    audio_vocab: int
    """entries per codebook, the end included"""
    text_vocab: int
    codebooks: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose dimensions agree. Each method reads, hashes and checks one part.

    Every method raises CheckpointError: the file is missing, damaged or swapped, or has other tensors than the spec requires.
    """

    root: Path
    gpt_spec: GptSpec

    def gpt(self) -> Tensors:
        """Returns the decoder stack: `layers.{n}.…` and `norm.weight`."""
        return _checked(self.root, GPT_FILE, _gpt_shapes(self.gpt_spec))

    def embed(self) -> Tensors:
        """Returns embeddings and heads of text and codes; heads as weight-norm pairs `parametrizations.weight.original0/1`."""
        return _checked(self.root, EMBED_FILE, _embed_shapes(self.gpt_spec))

    def mel_decoder(self, size: VocoderSize = "full") -> Tensors:
        """Returns the part that turns hidden states into mel frames (upstream's Decoder)."""
        file, _ = self.vocoder_files(size)
        stored = _read(self.root, file)
        stack = _conv_stack(stored.shapes, "decoder", self.root / file, free_mlp=size == "small")
        expected = self.gpt_spec.width / MEL_FRAMES_PER_STEP
        if stack.inputs != expected:
            raise CheckpointError(
                f"{self.root / file}: takes {stack.inputs} channels, but the GPT's width {self.gpt_spec.width} "
                f"over {MEL_FRAMES_PER_STEP} frames per step gives {expected:g}; the files are not of one checkpoint: {REMEDY}"
            )
        return stored.floats(mel_decoder_shapes(stack))

    def vocoder_files(self, size: VocoderSize) -> tuple[str, str]:
        """Returns the files of the mel decoder and of Vocos."""
        if size == "small" and (missing := [file for file in SMALL_FILES if not (self.root / file).is_file()]):
            raise CheckpointError(
                f"{self.root} has no small vocoder: {' and '.join(missing)} missing; set pipeline.vocoder.size to full, or "
                "learn a small one: python -m scripts.distill_vocoder"
            )
        return VOCODER_FILES[size]

    def dvae(self) -> Tensors:
        """Returns the part that turns recordings into codes, and codes into mel frames."""
        path = self.root / DVAE_FILE
        stored = _read(self.root, DVAE_FILE)
        encoder, decoder = _conv_stack(stored.shapes, "encoder", path), _conv_stack(stored.shapes, "decoder", path)
        # Two mel frames per step: a quantised vector of twice the decoder's width becomes two frames of it.
        if (encoder.inputs, encoder.outputs) != (decoder.inputs, MEL_FRAMES_PER_STEP * decoder.inputs):
            raise CheckpointError(
                f"{path}: the encoder's {encoder.inputs} -> {encoder.outputs} channels do not fit the decoder, "
                f"expected {decoder.inputs} -> {MEL_FRAMES_PER_STEP * decoder.inputs}: {REMEDY}"
            )
        if encoder.outputs % VQ_GROUPS:
            raise CheckpointError(
                f"{path}: {encoder.outputs} channels do not split into {VQ_GROUPS} quantiser groups: {REMEDY}"
            )
        return stored.floats(dvae_shapes(encoder=encoder, decoder=decoder))

    def vocos(self, size: VocoderSize = "full") -> Tensors:
        """Returns the part that turns mel frames into the waveform."""
        _, file = self.vocoder_files(size)
        path = self.root / file
        stored = _read(self.root, file)
        width, *_ = _shape(stored.shapes, "backbone.embed.weight", 3, path)
        mlp_width, _ = _shape(stored.shapes, "backbone.convnext.0.pwconv1.weight", 2, path)
        layers = _num_layers(stored.shapes, "backbone.convnext")
        return stored.floats(vocos_shapes(width=width, mlp_width=mlp_width, layers=layers))


def open_checkpoint(root: Path) -> Checkpoint:
    """Reads a checkpoint's dimensions from config.json and the headers of the tensor files, and compares them.

    Raises:
        CheckpointError: a file is missing, unreadable, or disagrees with another.
    """
    config = _Config.of(read_verified(root, GPT_CONFIG_FILE), root / GPT_CONFIG_FILE)
    embed_path = root / EMBED_FILE
    # The headers are not hashed yet; each part is compared with this spec again when its hashed bytes are parsed.
    embed = _header(embed_path)
    text_vocab, width = _shape(embed, "emb_text.weight", 2, embed_path)
    audio_vocab, _ = _shape(embed, "emb_code.0.weight", 2, embed_path)
    for name, entries, bits in (("emb_code.0", audio_vocab, CODE_BITS), ("emb_text", text_vocab, TEXT_TOKEN_BITS)):
        if entries > 1 << bits:
            raise CheckpointError(f"{embed_path}: {name}.weight has {entries} entries; this service takes at most {1 << bits}")
    spec = config.spec(audio_vocab=audio_vocab, text_vocab=text_vocab)
    if width != spec.width:
        raise CheckpointError(
            f"{embed_path}: width {width}, but {GPT_CONFIG_FILE} says hidden_size {spec.width}; "
            f"the files are not of one checkpoint: {REMEDY}"
        )
    gpt = _header(root / GPT_FILE)
    layers = _num_layers(gpt, "layers")
    if layers != spec.layers:
        raise CheckpointError(
            f"{root / GPT_FILE}: holds {layers} layers, but {GPT_CONFIG_FILE} says num_hidden_layers {spec.layers}: {REMEDY}"
        )
    check_shapes(gpt, _gpt_shapes(spec), root / GPT_FILE)
    check_shapes(embed, _embed_shapes(spec), embed_path)
    return Checkpoint(root, spec)


def check_shapes(actual: Mapping[str, tuple[int, ...]], shapes: Shapes, path: Path) -> None:
    """Compares the shapes in a file with the expected ones.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    missing = [name for name in shapes if name not in actual]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{path}: tensor {missing[0]}{more} is missing, expected shape {shapes[missing[0]]}: {REMEDY}")
    for name, shape in shapes.items():
        if actual[name] != shape:
            raise CheckpointError(f"{path}: {name} has shape {actual[name]}, expected {shape}: {REMEDY}")


def _gpt_shapes(spec: GptSpec) -> Shapes:
    return gpt_shapes(
        layers=spec.layers, width=spec.width, attention_width=spec.heads * spec.head_dim, mlp_width=spec.mlp_width
    )


def _embed_shapes(spec: GptSpec) -> Shapes:
    return embed_shapes(width=spec.width, text_vocab=spec.text_vocab, audio_vocab=spec.audio_vocab, codebooks=spec.codebooks)


def _checked(root: Path, file: str, shapes: Shapes) -> Tensors:
    return _read(root, file).floats(shapes)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The tensors of one file as they are stored."""

    path: Path
    tensors: dict[str, dict[str, Any]]
    """name -> dtype in safetensors' words, shape, data"""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return unpacked_shapes({name: tuple(stored["shape"]) for name, stored in self.tensors.items()})

    def floats(self, shapes: Shapes) -> Tensors:
        """Returns the expected tensors as float32, each compared with its shape; others are left out.

        Raises:
            CheckpointError: a tensor is missing, has another shape, or holds no floating-point numbers.
        """
        check_shapes(self.shapes, shapes, self.path)
        return {name: self._float(name) for name in shapes}

    def _float(self, name: str) -> NDArray[np.float32]:
        if name in self.tensors:
            return self._plain(name)
        try:
            if f"{name}.index" in self.tensors:
                rows: NDArray[np.float32] = self._plain(f"{name}.rows")[self._integers(f"{name}.index")]
                return rows
            if f"{name}.int8" in self.tensors:
                return widen_int8(self._integers(f"{name}.int8"), self._plain(f"{name}.scale"))
            return widen_int4(self._integers(f"{name}.int4"), self._plain(f"{name}.scale"))
        except (KeyError, ValueError, IndexError) as error:
            raise _damaged(self.path, error) from error

    def _integers(self, name: str) -> NDArray[Any]:
        stored = self.tensors.pop(name)
        return np.frombuffer(stored["data"], PACKED[stored["dtype"]]).reshape(stored["shape"])

    def _plain(self, name: str) -> NDArray[np.float32]:
        stored = self.tensors.pop(name)  # its bytes are not needed twice
        kind = stored["dtype"]
        if kind not in STORED:
            raise CheckpointError(f"{self.path}: {name} is {kind}, expected one of {', '.join(sorted(STORED))}: {REMEDY}")
        numbers = np.frombuffer(stored["data"], STORED[kind]).reshape(stored["shape"])
        return widened(numbers) if kind == "BF16" else numbers.astype(np.float32, copy=False)


def _read(root: Path, file: str) -> _Stored:
    content = read_verified(root, file)
    try:
        return _Stored(root / file, dict(deserialize(content)))  # type: ignore[no-untyped-call]
    except (SafetensorError, ValueError, KeyError) as error:
        raise _damaged(root / file, error) from error


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of every tensor, without reading any."""
    try:
        with safe_open(path, framework="np") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            return unpacked_shapes(shapes)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: the file is missing: {REMEDY}") from error
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path}: expected a whole safetensors file, found one that is cut short or damaged ({error}): {REMEDY}"
    )


def _conv_stack(shapes: Mapping[str, tuple[int, ...]], prefix: str, path: Path, *, free_mlp: bool = False) -> ConvStack:
    bottleneck, inputs, _ = _shape(shapes, f"{prefix}.conv_in.0.weight", 3, path)
    outputs, hidden, _ = _shape(shapes, f"{prefix}.conv_out.weight", 3, path)
    layers = _num_layers(shapes, f"{prefix}.decoder_block")
    mlp_width = _shape(shapes, f"{prefix}.decoder_block.0.pwconv1.weight", 2, path)[0] if free_mlp else None
    return ConvStack(inputs, bottleneck, hidden, outputs, layers, mlp_width)


def _shape(actual: Mapping[str, tuple[int, ...]], name: str, axes: int, path: Path) -> tuple[int, ...]:
    """Returns the shape of a tensor that defines dimensions, after checking its number of axes."""
    if name not in actual:
        raise CheckpointError(f"{path}: tensor {name} is missing: {REMEDY}")
    shape = actual[name]
    if len(shape) != axes or 0 in shape:
        raise CheckpointError(f"{path}: {name} has shape {shape}, expected {axes} axes, none of them empty: {REMEDY}")
    return shape


def _num_layers(names: Collection[str], prefix: str) -> int:
    numbers = [int(match.group(1)) for name in names if (match := re.match(rf"{re.escape(prefix)}\.(\d+)\.", name))]
    return max(numbers, default=-1) + 1


@dataclass(frozen=True, slots=True)
class _Config:
    """asset/gpt/config.json, with the keys of transformers' LlamaConfig."""

    values: dict[str, object]
    path: Path

    @classmethod
    def of(cls, content: bytes, path: Path) -> "_Config":
        try:
            values = json.loads(content)
        except ValueError as error:
            raise CheckpointError(f"{path}: expected JSON, found something that is not ({error}): {REMEDY}") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: expected a JSON object, found {type(values).__name__}: {REMEDY}")
        return cls(values, path)

    def spec(self, *, audio_vocab: int, text_vocab: int) -> GptSpec:
        width, heads = self.count("hidden_size"), self.count("num_attention_heads")
        head_dim = self.count("head_dim", default=width // heads)
        self.only("num_key_value_heads", heads)
        self.only("hidden_act", "silu")
        self.only("attention_bias", False)
        self.only("mlp_bias", False)
        self.only("rope_scaling", None)
        return GptSpec(
            layers=self.count("num_hidden_layers"),
            width=width,
            heads=heads,
            head_dim=head_dim,
            mlp_width=self.count("intermediate_size"),
            max_positions=self.count("max_position_embeddings"),
            rope_theta=self.rope_theta(),
            rms_eps=self.positive(self.values.get("rms_norm_eps", 1e-6), "rms_norm_eps"),
            audio_vocab=audio_vocab,
            text_vocab=text_vocab,
            codebooks=CODEBOOKS,
        )

    def rope_theta(self) -> float:
        """Returns the base of the rotary angles: below `rope_parameters` (transformers 5), at the top (4), or the default."""
        parameters = self.values.get("rope_parameters") or {}
        if not isinstance(parameters, dict):
            raise CheckpointError(f"{self.path}: rope_parameters is {parameters!r}, expected an object: {REMEDY}")
        if (kind := parameters.get("rope_type", "default")) != "default":
            raise CheckpointError(f"{self.path}: rope_parameters.rope_type is {kind!r}, expected 'default': {REMEDY}")
        theta = parameters.get("rope_theta", self.values.get("rope_theta", DEFAULT_ROPE_THETA))
        return self.positive(theta, "rope_theta")

    def count(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{self.path}: {key} is {value!r}, expected a whole number of at least 1: {REMEDY}")
        return value

    def positive(self, value: object, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise CheckpointError(f"{self.path}: {key} is {value!r}, expected a positive number: {REMEDY}")
        return float(value)

    def only(self, key: str, allowed: object) -> None:
        if (value := self.values.get(key, allowed)) != allowed:
            raise CheckpointError(f"{self.path}: {key} is {value!r}; this decoder supports only {allowed!r}")
