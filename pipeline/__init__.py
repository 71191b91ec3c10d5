"""The speech pipeline: text in, audio out, without Ray and without HTTP; it runs on a laptop's CPU.

    SynthesisRequest
        -> text/        normalise, split into segments, tokenise           -> Prompt
        -> engine/      prefill, then decode all slots step by step        -> StepBlock (hidden states, codes)
        -> vocoder/     each step once, or windows with true edges         -> AudioChunk (24 kHz samples)
        -> audio/       stretch, encode                                    -> bytes

Reading order: types/, synthesizer.py (the spine), engine/engine.py, vocoder/stream.py.

Floors, from the top; every import goes to a lower floor or stays in its folder:

    7  synthesizer
    6  books timing
    5  cache engine takes text vocoder voices
    4  model
    3  audio checkpoint native store
    2  config protocols with_torch yaml_loader
    1  bfloat16 child durable_file errors ewma paths spec types
"""
