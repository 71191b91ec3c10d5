"""Voices: who speaks.

A name is looked up here and becomes a Voice: an embedding, or the codes and the transcript of a recording.

    catalogue.py   the voices the operator ships, configs/voices.yaml, and seed:<n>
    records.py     the voices made over HTTP, as the store keeps them: immutable, versioned
    library.py     both behind one door: names, versions, blends, inline embeddings
    seeds.py  strings.py   an embedding out of a number; ChatTTS's own strings, both ways
    reference.py  vad.py   a recording from a stranger, held to what a clone needs
    measure.py     how loud a voice is, how much it stays itself
"""
