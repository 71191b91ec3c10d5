"""GPU memory: how much of a GPU a configuration needs.

In:    a configuration
Out:   bytes
Owns:  what a process takes besides its weights and its cache: predicted
Never: a device
"""

from pipeline.config import EngineConfig, PipelineConfig, VocoderConfig
from pipeline.engine.kv_cache import bytes_of_head
from pipeline.model.cpu import four_bit

MIB = 1 << 20
KV_BYTES = {"float32": 4, "bfloat16": 2}  # bytes per number
ROUNDED_BYTES = {"int8": 1, "int4": four_bit.BYTES}  # of a weight

# Dimensions of ChatTTS's GPT, for keys and values per position and the weights of the decoder.
LAYERS, WIDTH, HEADS, MLP_WIDTH = 20, 768, 12, 3072

# Predicted; `make gpu-check` measures the sum.
CONTEXT = 500 * MIB
"""a process on the GPU: the driver's context and the libraries' code"""
EMBEDDINGS = 160 * MIB
"""text and code embeddings with their heads, float32 for every dtype"""
ENGINE_GRAPHS = 572 * MIB
"""rounds, prefills and cuBLAS's workspace of an engine, and the activations of a prefill"""
REFINED = 2 * MIB
"""of a slot in the refine pass's round: sorted and summed float64 of 21,178 tokens"""
VOCODER_WEIGHTS = 250 * MIB
WORKSPACE = 32 * MIB
"""of cuBLAS, one per window decoded side by side"""
WINDOW_MEMORY = 60 * MIB
"""activations of one window of the largest shape, in its graphs"""

BESIDE = VocoderConfig(placement="with_acoustic", device="cuda", rows=8)
"""as in configs/gpu.yaml"""


def needed_bytes(pipeline: PipelineConfig) -> int:
    """Returns the GPU memory that the configuration needs, if engine and vocoder share one GPU: computed, partly predicted."""
    engine, vocoder = pipeline.engine, pipeline.vocoder
    needed = 0
    if engine.device == "cuda":
        needed += engine_bytes(engine)
    if vocoder.device == "cuda":
        needed += vocoder_bytes(vocoder)
    in_one_process = vocoder.is_beside_engine and engine.device == vocoder.device == "cuda"
    return needed - CONTEXT if in_one_process else needed


def engine_bytes(engine: EngineConfig) -> int:
    """Returns the memory of one engine: its cache as it is allocated, its weights, and what a process takes besides."""
    spare = kv_cache_bytes(engine) // engine.slots if engine.prefill_rows > 1 else 0
    return CONTEXT + EMBEDDINGS + ENGINE_GRAPHS + engine.slots * REFINED + weight_bytes(engine) + kv_cache_bytes(engine) + spare


def vocoder_bytes(vocoder: VocoderConfig) -> int:
    """Returns the memory of one vocoder."""
    return CONTEXT + VOCODER_WEIGHTS + vocoder.rows * (WORKSPACE + WINDOW_MEMORY)


def largest_share(pipeline: PipelineConfig) -> float:
    """Returns the largest part of the GPU's memory that the configuration may need."""
    return pipeline.engine.gpu_memory_share


def kv_cache_bytes(engine: EngineConfig) -> int:
    """Returns the size of the KV cache, which is allocated once [bytes]."""
    of_head = bytes_of_head(WIDTH // HEADS, KV_BYTES[engine.dtype], engine.kv)
    return 2 * LAYERS * HEADS * of_head * engine.positions * engine.slots


def weight_bytes(engine: EngineConfig) -> int:
    """Returns the size of the decoder's weights [bytes]; embeddings and heads, a tenth of it, are not counted."""
    item = ROUNDED_BYTES.get(engine.weights, KV_BYTES[engine.dtype])
    return int(LAYERS * (4 * WIDTH**2 + 3 * WIDTH * MLP_WIDTH) * item)
