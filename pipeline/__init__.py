"""The domain: text in, audio out. No Ray, no HTTP; runs on a laptop CPU.

    SynthesisRequest
        -> text/        normalise, split into segments, tokenise           -> Prompt
        -> engine/      prefill, then decode all slots step by step        -> StepBlock (hidden states, codes)
        -> vocoder/     each step once, or windows with true edges         -> AudioChunk (24 kHz samples)
        -> audio/       stretch, encode                                    -> bytes

Reading order: types.py, synthesizer.py (the spine), engine/engine.py, vocoder/stream.py.
native/ builds the C++ of other rooms; model/ holds the network both engine/ and vocoder/ run; checkpoints.py finds its files,
manifest.py vouches for them, recipes.py makes the ones with random weights. voices/ knows who speaks, store/ keeps it.
"""
