"""Config: every setting of the synthesis with its default, bounds and unit, in one strict tree.

In:    nested plain values (the `pipeline:` part of a YAML file), or nothing at all: the defaults work on a laptop CPU
Out:   PipelineConfig, frozen
Never: files, environment variables
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.spec import REACH_STEPS, VocoderSize


class StrictModel(BaseModel):
    """A section that refuses unknown keys and is frozen. A pydantic error says no value: it may be a URL with a password."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def varied(cls, settings: Mapping[str, Any]) -> Self:
        """Returns a section in which constants of the class, too, may have other values: for measurements and tests."""
        constants = {name: settings[name] for name in cls.__class_vars__ & settings.keys()}
        kind: type[Self] = type(cls.__name__, (cls,), constants)
        return kind.model_validate({name: value for name, value in settings.items() if name not in constants})


def words_of(mistake: Mapping[str, Any]) -> str:
    """Returns the words of one mistake of a ValidationError, without what pydantic writes before a validator's own."""
    return str(mistake["msg"]).removeprefix("Value error, ")


class EngineConfig(StrictModel):
    """The engine of the acoustic model, a GPT."""

    device: Literal["cpu", "cuda", "auto"] = Field(
        "cpu",
        description="device of the model; auto: cuda where the process sees a GPU (num_gpus of its deployment), else cpu; "
        "affects the bits of the audio",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="number format of the model; affects the bits of the audio"
    )
    decode: Literal["auto", "native", "torch"] = Field(
        "auto",
        description="decode step on a CPU: native machine code, compiled once (AVX2 or AVX-512, and a C++ compiler), or torch; "
        "auto: native if it can be compiled; affects the bits of the audio",
    )
    weights: Literal["dtype", "int8", "int4"] = Field(
        "dtype",
        description="number format of the weights: dtype's, int8 with one scale per output, or int4 with one per 32 inputs, "
        "faster and coarser; both need dtype bfloat16 and native decoding, or int8 a GPU; affects the bits of the audio",
    )
    kv: Literal["dtype", "int8"] = Field(
        "dtype",
        description="number format of the KV cache: dtype's, or int8 with one scale per position and head, half the size of "
        "bfloat16",
    )
    threads: int | None = Field(None, ge=1, le=256, description="CPU threads of the model; null: torch decides")
    slots: int = Field(
        8, ge=1, le=512, description="sequences decoded together, in one fixed matrix shape; affects the bits of the audio"
    )
    max_prompt: int = Field(512, ge=64, le=3072, description="longest prompt [positions]")
    max_steps: int = Field(1024, ge=64, le=2048, description="longest sequence, 46.875 steps per second of audio [steps]")
    kv_budget_mib: int = Field(2048, ge=1, description="largest size of the static KV cache [MiB]")
    gpu_memory_share: float = Field(
        0.85,
        gt=0,
        le=1,
        description="largest part of a GPU's memory that may be in use, by anyone, once the KV cache is allocated",
    )
    ignore_eos: bool = Field(
        False,
        description="true: for measurements and weights that draw no end token: every sequence runs to its step limit, three "
        "steps per character",
    )
    steps_per_round: int = Field(
        1, ge=1, le=32, description="steps between synchronisations with the host; on a GPU use 4 to 8"
    )
    attention: Literal["auto", "sdpa", "triton"] = Field(
        "auto",
        description="decode attention on a GPU: triton reads the positions in use per slot, sdpa all positions; auto: triton",
    )
    prefill_rows: int = Field(
        1, ge=1, le=32, description="prompts per prefill call, in one fixed matrix shape; affects the bits of the audio"
    )
    max_waiting: int = Field(
        32, ge=0, le=4096, description="segments that may wait for a slot; while so many wait, requests are refused"
    )
    max_rtf: float | None = Field(
        0.8,
        gt=0,
        le=1,
        description="a sequence waits for a slot while one more would make those that are listened to slower than this "
        "real-time factor, and bulk rows beyond that stay out of the round; bulk alone uses all slots; null: nobody waits",
    )
    round_timeout_s: float = Field(8.0, gt=0, description="time after which a round counts as hung [s]")

    block_steps: ClassVar[int] = 4
    """of a delivered block if the request sets none: 85 ms of audio"""
    buffer_steps: ClassVar[int] = 256
    """undelivered steps at which a sequence pauses: 5 s of audio, far more than two rounds"""
    stall_timeout_s: ClassVar[float] = 30.0
    """until a paused sequence without a reader is ended: as long as a client may take by default"""
    standard_patience_s: ClassVar[float] = 2.0
    """an interactive sequence overtakes standard ones that arrived less than this before it"""
    bulk_patience_s: ClassVar[float] = 20.0
    """all others go before bulk; while a bulk sequence is older than they by this, one slot stays bulk's, and
    one row where five are fast enough (max_rtf)"""
    max_preempted: ClassVar[int] = 4
    """bulk sequences kept in host memory with their KV cache: at most 60 KiB per position each"""
    attention_split: ClassVar[int | None] = None
    """positions that triton sums at once; None: chosen from slots; section `splits` of the GPU check measures others"""

    @property
    def positions(self) -> int:
        """KV cache positions per slot."""
        return self.max_prompt + self.max_steps

    @property
    def largest_block(self) -> int:
        """Most steps that can be held back for one block: with more, the next round would find no space in the buffer."""
        return self.buffer_steps - self._rounds_in_buffer * self.steps_per_round

    @property
    def _rounds_in_buffer(self) -> int:
        # A GPU begins a round before the previous one has been delivered.
        return 1 if self.device == "cpu" else 2

    @model_validator(mode="after")
    def _rounded_weights_can_be_read(self) -> "EngineConfig":
        if self.weights == "dtype":
            return self
        if self.dtype != "bfloat16":
            raise ValueError(f"weights {self.weights} need dtype bfloat16, not {self.dtype}")
        if (self.device, self.decode) == ("cpu", "torch"):
            raise ValueError(f"weights {self.weights} need decode native or auto on a CPU: torch decodes in dtype there")
        if self.weights == "int4" and self.device == "cuda":
            raise ValueError("weights int4 are for a CPU, with decode native or auto; on a GPU set weights to int8 or dtype")
        return self


WINDOW_CHUNK_STEPS = (8, 16, 32, 48, 96)  # every window also decodes 104 steps of context, so sizes grow fast
INCREMENTAL_CHUNK_STEPS = (8, 8, 8, 12, 16, 20, 24, 32)  # no pause at a real-time factor of 0.8; large ones cost less per step


class VocoderConfig(StrictModel):
    """The vocoder, which decodes steps to samples."""

    placement: Literal["separate", "with_acoustic"] = Field(
        "separate",
        description="separate: a deployment of its own, Vocoder, on devices of its own; with_acoustic: in every replica of "
        "AcousticModel, on the same cores or GPU, so that audio leaves it instead of hidden states",
    )
    device: Literal["cpu", "cuda", "auto"] = Field(
        "cpu", description="device of the vocoder; auto: as engine.device; affects the bits of the audio"
    )
    method: Literal["auto", "incremental", "windows"] = Field(
        "auto",
        description="incremental: every step is decoded once, and layers keep state (AVX2 or AVX-512, and a C++ compiler); "
        "windows: every chunk is decoded with its context; auto: incremental if it can be compiled; affects the bits of the "
        "audio",
    )
    threads: int | None = Field(None, ge=1, le=256, description="CPU threads of the vocoder; null: torch decides")
    use_decoder: bool = Field(True, description="true: decodes hidden states; false: codes, through the DVAE, faster")
    size: VocoderSize = Field(
        "full",
        description="small: the faster one in asset/small/, learned from the full one; affects the bits of the audio",
    )
    rows: int = Field(1, ge=1, le=64, description="windows per call; affects the bits of the audio on a CPU")
    matmul: Literal["float32", "tf32"] = Field(
        "float32", description="matrix products on a GPU: float32, or tf32 on tensor cores with 10 bits of mantissa"
    )

    look_ahead: ClassVar[int] = REACH_STEPS
    """context on each side of a window: so many are exact"""
    chunk_steps: ClassVar[tuple[int, ...] | None] = None
    """sizes of the first, second, ... chunk, the last one repeated; None: the method's"""

    @property
    def is_beside_engine(self) -> bool:
        """True if AcousticModel decodes what it generates."""
        return self.placement == "with_acoustic"

    @property
    def allows_incremental(self) -> bool:
        """True if these settings allow the incremental method; the machine must allow it too."""
        return self.method != "windows" and self.device == "cpu" and self.look_ahead == REACH_STEPS

    def chunks(self, *, incremental: bool) -> tuple[int, ...]:
        """Returns the sizes of the first, second, ... chunk [steps]."""
        return self.chunk_steps or (INCREMENTAL_CHUNK_STEPS if incremental else WINDOW_CHUNK_STEPS)

    @model_validator(mode="after")
    def _incremental_is_exact_on_a_cpu(self) -> "VocoderConfig":
        if self.method == "incremental" and not self.allows_incremental:
            raise ValueError(f"method incremental needs device cpu, not {self.device}; method windows takes any")
        return self

    @model_validator(mode="after")
    def _small_decodes_hidden_states(self) -> "VocoderConfig":
        if self.size == "small" and not self.use_decoder:
            raise ValueError("size small is for use_decoder true: there is no small vocoder for codes")
        return self


class SpeechConfig(StrictModel):
    """The segments of one request."""

    parallel_segments: int = Field(4, ge=1, le=64, description="segments per request decoded at the same time")
    latency: Literal["exact", "low"] = Field(
        "exact",
        description="of requests that set none; exact: a sample waits for every step that affects it; low: the first seconds "
        "wait for fewer; affects the bits of the audio",
    )


class PipelineConfig(StrictModel):
    """All settings of the synthesis."""

    checkpoint: str = Field("demo", description="demo, small-random, full-random, hub:2Noise/ChatTTS or the path of a folder")
    engine: EngineConfig = EngineConfig()
    vocoder: VocoderConfig = VocoderConfig()
    speech: SpeechConfig = SpeechConfig()
