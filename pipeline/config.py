"""Config: every setting of the synthesis with its default, bounds and unit, in one strict tree.

In:    nested plain values (the `pipeline:` part of a YAML file), or nothing at all: the defaults work on a laptop CPU
Out:   PipelineConfig, frozen
Never: files, environment variables
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.spec import REACH_STEPS


class StrictModel(BaseModel):
    """A section that refuses unknown keys and is frozen. A pydantic error says no value: it may be a URL with a password."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def words_of(mistake: Mapping[str, Any]) -> str:
    """Returns the words of one mistake of a ValidationError, without what pydantic writes before a validator's own."""
    return str(mistake["msg"]).removeprefix("Value error, ")


class TextConfig(StrictModel):
    """The text front end: its limits, and the lengths of segments."""

    first_clause_chars: int = Field(
        24, ge=1, le=400, description="shortest first clause that becomes a segment of its own [characters]"
    )
    first_segment_chars: int = Field(
        60, ge=8, le=400, description="longest first segment; short, because the first audio waits for it [characters]"
    )
    min_segment_chars: int = Field(
        90,
        ge=1,
        le=400,
        description="a segment ends at its last sentence or clause that makes it this long [characters]",
    )
    max_segment_chars: int = Field(
        150, ge=16, le=400, description="longest segment; a CJK character counts as three [characters]"
    )
    steps_per_char: float = Field(
        8.0,
        gt=0,
        le=64,
        description="step limit of a segment per character, three times the most observed; a CJK character counts as three "
        "[steps per character]",
    )
    base_steps: int = Field(64, ge=1, le=1024, description="constant part of a segment's step limit [steps]")
    cpu_s_per_1000_chars: float = Field(
        0.5,
        gt=0,
        le=60,
        description="limit of the processor time to normalise a text, per 1000 characters or part of them; beyond it: 422 [s]",
    )
    hang_timeout_s: float = Field(
        4.0,
        gt=0,
        le=600,
        description="time after that limit until a text worker without an answer counts as hung and is replaced [s]",
    )
    refine_steps: int = Field(
        384, ge=1, le=1024, description="step limit of the refine pass; 384 is ChatTTS's own max_new_token [steps]"
    )

    @property
    def with_short_segments(self) -> "TextConfig":
        """These settings with segments half as long."""
        least, most = max(1, self.min_segment_chars // 2), max(16, self.max_segment_chars // 2)
        return self.model_copy(update={"min_segment_chars": least, "max_segment_chars": most})


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
        description="true: every sequence runs to its step limit, for measurements and weights that draw no end token",
    )
    steps_per_round: int = Field(
        1, ge=1, le=32, description="steps between synchronisations with the host; on a GPU use 4 to 8"
    )
    attention: Literal["auto", "sdpa", "triton"] = Field(
        "auto",
        description="decode attention on a GPU: triton reads the positions in use per slot, sdpa all positions; auto: triton",
    )
    attention_split: int | None = Field(
        None,
        ge=64,
        le=8192,
        description="positions that triton sums at once; null: chosen from slots; affects the bits of the audio [positions]",
    )
    prefill_rows: int = Field(
        1, ge=1, le=32, description="prompts per prefill call, in one fixed matrix shape; affects the bits of the audio"
    )
    block_steps: int = Field(4, ge=1, le=256, description="size of a delivered block if the request sets none [steps]")
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
    standard_patience_s: float = Field(
        2.0,
        ge=0,
        le=600,
        description="an interactive sequence overtakes standard ones that arrived less than this before it [s]",
    )
    bulk_patience_s: float = Field(
        20.0,
        ge=0,
        le=600,
        description="all others go before bulk; while a bulk sequence is older than they by this, one slot stays bulk's, and "
        "one row where five are fast enough (max_rtf) [s]",
    )
    max_preempted: int = Field(
        4,
        ge=0,
        le=512,
        description="most preempted bulk sequences, kept in host memory with their KV cache; 0: none is preempted",
    )
    buffer_steps: int = Field(256, ge=1, le=4096, description="undelivered steps at which a sequence pauses [steps]")
    stall_timeout_s: float = Field(30.0, gt=0, description="time until a paused sequence without a reader is ended [s]")
    round_timeout_s: float = Field(8.0, gt=0, description="time after which a round counts as hung [s]")

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

    @model_validator(mode="after")
    def _buffer_holds_a_round(self) -> "EngineConfig":
        if self.largest_block < self.block_steps:
            rounds = self._rounds_in_buffer
            raise ValueError(
                f"buffer_steps {self.buffer_steps} must hold at least {'2 x ' * (rounds - 1)}steps_per_round + block_steps "
                f"= {rounds * self.steps_per_round + self.block_steps}, or no sequence can ever run"
            )
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
        "windows: every chunk is decoded with its context; auto: incremental if it can be compiled and look_ahead is exact; "
        "affects the bits of the audio",
    )
    threads: int | None = Field(None, ge=1, le=256, description="CPU threads of the vocoder; null: torch decides")
    use_decoder: bool = Field(True, description="true: decodes hidden states; false: codes, through the DVAE, faster")
    look_ahead: int = Field(
        REACH_STEPS, ge=0, le=REACH_STEPS, description="context on each side of a window; 52 is exact [steps]"
    )
    chunk_steps: tuple[Annotated[int, Field(ge=1, le=512)], ...] | None = Field(
        None,
        min_length=1,
        description="sizes of the first, second, ... chunk, the last one repeated; null: the method's defaults [steps]",
    )
    rows: int = Field(1, ge=1, le=64, description="windows per call; affects the bits of the audio on a CPU")
    matmul: Literal["float32", "tf32"] = Field(
        "float32", description="matrix products on a GPU: float32, or tf32 on tensor cores with 10 bits of mantissa"
    )
    max_waiting: int = Field(256, ge=1, le=65536, description="calls that may wait; further ones are refused")
    call_timeout_s: float = Field(8.0, gt=0, description="time after which a call counts as hung [s]")

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
            raise ValueError(
                f"method incremental needs device cpu and look_ahead {REACH_STEPS}, not {self.device} and {self.look_ahead}; "
                "method windows takes any"
            )
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
    text: TextConfig = TextConfig()
    engine: EngineConfig = EngineConfig()
    vocoder: VocoderConfig = VocoderConfig()
    speech: SpeechConfig = SpeechConfig()
