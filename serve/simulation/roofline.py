"""Roofline: predicts the memory that a configuration needs on a GPU and the time of a decode step there.

In:    a configuration; a card's memory, its rate, and its multiprocessors as products a second
Out:   bytes and milliseconds, which are called predictions wherever they are printed
Never: torch, a device

A step reads every weight once and the keys and values of each sequence, at REACHED of the memory's rate. Each of its kernels
takes NODE_US besides. The vocoder's windows are products at VOCODER_REACHED of the card's float32 peak, on tensor cores TF32
times as fast. Both share the card, so their times per second of audio add up. `make gpu-check` measures each term. On an H100
a step of 64 slots was predicted at 1.17 ms and took 1.16, one of 128 at 1.76 and took 1.62; VOCODER_REACHED and TF32 are that
card's.
"""

from dataclasses import dataclass

from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.model.cpu import four_bit
from pipeline.spec import STEPS_PER_SECOND

MIB, GIB = 1 << 20, 1 << 30
ITEM_BYTES = {"float32": 4, "bfloat16": 2}  # per number
ROUNDED_BYTES = {"int8": 1, "int4": four_bit.BYTES}  # of a weight
SCALE_BYTES = 4  # of a head's key or value in int8

BESIDE = VocoderConfig(placement="with_acoustic", device="cuda", rows=8, matmul="tf32")
"""as in configs/gpu.yaml"""

# Dimensions of ChatTTS's GPT.
LAYERS, WIDTH, HEADS, MLP_WIDTH = 20, 768, 12, 3072

# Memory.
CONTEXT = 500 * MIB
"""a process on the GPU: the driver's context and the libraries' code"""
EMBEDDINGS = 160 * MIB
"""text and code embeddings with their heads, float32 for every dtype"""
ENGINE_GRAPHS = 572 * MIB
"""rounds, prefills and cuBLAS's workspace of an engine, and the activations of a prefill"""
REFINED = 2 * MIB
"""of a slot in the refine pass's round: sorted and summed float64 of 21,178 tokens"""
VOCODER_WEIGHTS = 250 * MIB
WINDOW = 92 * MIB
"""of each window decoded side by side: cuBLAS's workspace, and the activations of the largest shape in its graphs"""

# Time.
POSITIONS = 300
"""of a sequence: the middle of an utterance of ten seconds"""
REACHED = 0.6
"""of the memory's rate: kernels of this kind reach that or more on data-centre cards"""
NODE_US = 2.4
"""of a kernel in a CUDA graph [us]"""
NODES = 8 * LAYERS + 4
WINDOW_GFLOP = 28.5
"""of the windows of one second of audio, whose contexts overlap"""
VOCODER_REACHED, TF32 = 0.25, 2.3
PREFILL_MS = 0.12
"""of a second of audio: one call of 0.8 ms (184 nodes) per request of about five seconds, some of them shared"""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as its driver describes it."""

    name: str
    memory_gib: float
    memory_rate: float
    """[bytes/s]"""
    tflops: float
    """peak of float32 products without tensor cores [10^12/s]"""


def needed_bytes(pipeline: PipelineConfig) -> int:
    """Returns the GPU memory that the configuration needs, if engine and vocoder share one GPU [bytes]."""
    engine, vocoder = pipeline.engine, pipeline.vocoder
    on_gpu = [engine.device == "cuda", vocoder.device == "cuda"]
    needed = engine_bytes(engine) * on_gpu[0] + vocoder_bytes(vocoder) * on_gpu[1]
    return needed - CONTEXT if all(on_gpu) and vocoder.is_beside_engine else needed


def engine_bytes(engine: EngineConfig) -> int:
    """Returns the memory of one engine: its cache as it is allocated, its weights, and what a process takes besides [bytes]."""
    spare = kv_cache_bytes(engine) // engine.slots if engine.prefill_rows > 1 else 0
    return CONTEXT + EMBEDDINGS + ENGINE_GRAPHS + engine.slots * REFINED + weight_bytes(engine) + kv_cache_bytes(engine) + spare


def vocoder_bytes(vocoder: VocoderConfig) -> int:
    """Returns the memory of one vocoder [bytes]."""
    return CONTEXT + VOCODER_WEIGHTS + vocoder.rows * WINDOW


def kv_cache_bytes(engine: EngineConfig) -> int:
    """Returns the size of the KV cache, which is allocated once [bytes]."""
    head_dim = WIDTH // HEADS
    of_head = head_dim + SCALE_BYTES if engine.kv == "int8" else head_dim * ITEM_BYTES[engine.dtype]
    return 2 * LAYERS * HEADS * of_head * engine.positions * engine.slots


def weight_bytes(engine: EngineConfig) -> int:
    """Returns the size of the decoder's weights [bytes]; embeddings and heads, a tenth of it, are not counted."""
    item = ROUNDED_BYTES.get(engine.weights, ITEM_BYTES[engine.dtype])
    return int(LAYERS * (4 * WIDTH**2 + 3 * WIDTH * MLP_WIDTH) * item)


def step_ms(engine: EngineConfig, card: Card) -> float:
    """Returns the time of a decode step with every slot in use [ms]."""
    cached = POSITIONS * kv_cache_bytes(engine) / engine.positions
    return (weight_bytes(engine) + cached) / (REACHED * card.memory_rate) * 1e3 + NODES * NODE_US / 1e3


def audio_s_per_s(engine: EngineConfig, card: Card) -> float:
    """Returns the seconds of audio per second of a card that runs engine and vocoder, with every slot in use."""
    vocoder_ms = WINDOW_GFLOP / (VOCODER_REACHED * TF32 * card.tflops)
    ms = step_ms(engine, card) / engine.slots * STEPS_PER_SECOND + PREFILL_MS + vocoder_ms
    return 1e3 / ms
