"""Config: every tunable of the domain, with its default, bounds and unit, in one strict tree.

In:    nested plain values (the `pipeline:` part of a YAML file), or nothing at all: the defaults work on a laptop CPU
Out:   PipelineConfig, frozen
Never: files, environment variables
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.spec import REACH_STEPS


class StrictModel(BaseModel):
    """Refuses unknown keys and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TextConfig(StrictModel):
    """text/: how text becomes segments and how long a segment may speak."""

    first_clause_chars: int = Field(24, ge=1, le=400, description="shortest first clause that is spoken on its own [letters]")
    first_segment_chars: int = Field(60, ge=8, le=400, description="longest first segment: it is heard first [letters]")
    min_segment_chars: int = Field(
        90, ge=1, le=400, description="a segment ends at the last sentence or clause above [letters]"
    )
    max_segment_chars: int = Field(150, ge=16, le=400, description="longest segment; a CJK character counts three [letters]")
    steps_per_char: float = Field(
        8.0, gt=0, le=64, description="step cap a letter: three times the longest seen, a CJK character counts three letters"
    )
    base_steps: int = Field(64, ge=1, le=1024, description="step cap of an empty text, added to every segment's")
    read_cpu_s: float = Field(
        0.5, gt=0, le=60, description="processor time to read a text, for each 1000 characters begun; more is a 422 [s]"
    )
    read_wall_s: float = Field(
        4.0,
        gt=0,
        le=600,
        description="a text worker that has not answered so long after its processor time would be over hangs: it is killed "
        "and replaced [s]",
    )
    refine_steps: int = Field(384, ge=1, le=1024, description="step cap of the refine pass; upstream's max_new_token")

    @property
    def with_short_segments(self) -> "TextConfig":
        """With segments half as long."""
        least, most = max(1, self.min_segment_chars // 2), max(16, self.max_segment_chars // 2)
        return self.model_copy(update={"min_segment_chars": least, "max_segment_chars": most})


class EngineConfig(StrictModel):
    """engine/: the GPT acoustic model."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    decode: Literal["auto", "native", "torch"] = Field(
        "auto",
        description="a CPU's decode step: native machine code, built once (AVX-512 and a C++ compiler), or torch's operations; "
        "auto: native where it can be built; part of the numerics",
    )
    weights: Literal["dtype", "int8"] = Field(
        "dtype",
        description="what the weights are read in: as dtype, or int8 with a scale an output; int8 needs dtype bfloat16 and "
        "a GPU, or native decoding",
    )
    kv: Literal["dtype", "int8"] = Field(
        "dtype",
        description="what the KV cache holds: numbers in dtype, or int8 with a scale a position and head, in half the room of "
        "bfloat16",
    )
    threads: int | None = Field(None, ge=1, le=256, description="CPU threads of the model; null: torch's own choice")
    slots: int = Field(8, ge=1, le=512, description="sequences decoded together; one matrix shape, so part of the numerics")
    max_prompt: int = Field(512, ge=64, le=3072, description="longest prompt [positions]")
    max_steps: int = Field(1024, ge=64, le=2048, description="longest sequence, 46.875 steps a second [steps]")
    kv_budget_mib: int = Field(2048, ge=1, description="most memory the static KV cache may take [MiB]")
    ignore_eos: bool = Field(
        False, description="every sequence runs to its step cap: for measuring, and for weights that know no end"
    )
    steps_per_round: int = Field(1, ge=1, le=32, description="steps between two looks at the host; 1 on a CPU, 4-8 on a GPU")
    attention: Literal["auto", "sdpa", "triton"] = Field(
        "auto", description="decode attention on a GPU; triton reads what a slot holds, sdpa all it may hold; auto: triton"
    )
    attention_split: int | None = Field(
        None, ge=64, le=8192, description="positions triton sums up at once, part of the numerics; null: by slots [positions]"
    )
    prefill_rows: int = Field(1, ge=1, le=32, description="prompts in one prefill call; a fixed shape, so part of the numerics")
    block_steps: int = Field(4, ge=1, le=256, description="steps delivered together to a reader that names no sizes")
    max_waiting: int = Field(32, ge=0, le=4096, description="requests that may wait for a slot; more are refused")
    standard_patience_s: float = Field(
        2.0,
        ge=0,
        le=600,
        description="an interactive sequence goes before standard ones that came less than this before it [s]",
    )
    bulk_patience_s: float = Field(
        20.0, ge=0, le=600, description="the same for bulk ones, which may also be interrupted until then [s]"
    )
    max_parked: int = Field(
        4,
        ge=0,
        le=512,
        description="interrupted bulk sequences, kept in host memory with their keys and values; 0: none ever is",
    )
    buffer_steps: int = Field(256, ge=1, le=4096, description="undelivered steps at which a sequence pauses")
    stall_timeout_s: float = Field(30.0, gt=0, description="a paused sequence whose reader takes nothing is cut after [s]")
    round_timeout_s: float = Field(8.0, gt=0, description="a round that takes longer counts as hung [s]")

    @property
    def positions(self) -> int:
        """KV positions of a slot."""
        return self.max_prompt + self.max_steps

    @property
    def largest_block(self) -> int:
        """Steps that can be held back for one block: with more the next round would find no room in the buffer."""
        return self.buffer_steps - self._rounds_in_buffer * self.steps_per_round

    @property
    def _rounds_in_buffer(self) -> int:
        # A GPU begins a round before the one before it has been delivered.
        return 2 if self.device == "cuda" else 1

    @model_validator(mode="after")
    def _int8_weights_are_read_somewhere(self) -> "EngineConfig":
        if self.weights == "int8" and self.dtype != "bfloat16":
            raise ValueError(f"weights int8 are read with dtype bfloat16, not {self.dtype}")
        if self.weights == "int8" and (self.device, self.decode) == ("cpu", "torch"):
            raise ValueError("weights int8 need decode native or auto on a CPU: torch decodes in dtype there")
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


WINDOW_CHUNK_STEPS = (8, 16, 32, 48, 96)  # a window decodes 104 steps of context besides: few of them, large ones
CARRY_CHUNK_STEPS = (8, 8, 8, 12, 16, 20, 24, 32)  # without a pause at a real-time factor of 0.8; large ones cost less a step


class VocoderConfig(StrictModel):
    """vocoder/: steps to samples."""

    device: Literal["cpu", "cuda"] = "cpu"
    method: Literal["auto", "carry", "windows"] = Field(
        "auto",
        description="carry: every step decoded once, layers remember (a CPU with AVX-512 and a C++ compiler); windows: each "
        "chunk decoded with its context; auto: carry where it can be built and look_ahead is exact; part of the numerics",
    )
    threads: int | None = Field(None, ge=1, le=256, description="CPU threads of the model; null: torch's own choice")
    use_decoder: bool = Field(True, description="True: from hidden states; False: from codes through the DVAE, lighter")
    look_ahead: int = Field(REACH_STEPS, ge=0, le=REACH_STEPS, description="context of a window each side; 52 is exact [steps]")
    chunk_steps: tuple[Annotated[int, Field(ge=1, le=512)], ...] | None = Field(
        None,
        min_length=1,
        description="steps of the first, second, ... chunk; the last one repeats; null: as the method likes it best [steps]",
    )
    rows: int = Field(1, ge=1, le=64, description="windows in one call; on a CPU a fixed shape, so part of the numerics")
    matmul: Literal["float32", "tf32"] = Field(
        "float32", description="matrix products on a GPU: exact, or on tensor cores with 10 bits of mantissa"
    )
    max_waiting: int = Field(256, ge=1, le=65536, description="calls that may wait; more are refused")
    call_timeout_s: float = Field(8.0, gt=0, description="a call that takes longer counts as hung [s]")

    @property
    def can_carry(self) -> bool:
        """Whether carrying is what is asked for, machine permitting."""
        return self.method != "windows" and self.device == "cpu" and self.look_ahead == REACH_STEPS

    def chunks(self, *, carries: bool) -> tuple[int, ...]:
        """Steps of the first, second, ... chunk."""
        return self.chunk_steps or (CARRY_CHUNK_STEPS if carries else WINDOW_CHUNK_STEPS)

    @model_validator(mode="after")
    def _carrying_is_exact_on_a_cpu(self) -> "VocoderConfig":
        if self.method == "carry" and not self.can_carry:
            raise ValueError(
                f"method carry needs device cpu and look_ahead {REACH_STEPS}, not {self.device} and {self.look_ahead}; "
                "method windows takes any"
            )
        return self


class SpeechConfig(StrictModel):
    """synthesizer: how one request's segments run together."""

    parallel_segments: int = Field(4, ge=1, le=64, description="segments of one request decoded at the same time")


class PipelineConfig(StrictModel):
    """Everything the domain can be told."""

    checkpoint: str = Field("demo", description="demo, small-random, full-random, hub:2Noise/ChatTTS or a folder")
    text: TextConfig = TextConfig()
    engine: EngineConfig = EngineConfig()
    vocoder: VocoderConfig = VocoderConfig()
    speech: SpeechConfig = SpeechConfig()
