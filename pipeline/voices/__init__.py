"""Voices: names become embeddings or reference recordings.

catalogue.py   the voices the operator ships, configs/voices.yaml, and seed:<n>
records.py     the voices made over HTTP, as the store keeps them: immutable, versioned
library.py     both together: names, versions, blends, inline embeddings
seeds.py       the embedding of a seed
strings.py     ChatTTS's own speaker and prompt strings, both ways
reference.py   an uploaded recording, checked for what a clone needs; vad.py finds the speech in it
measure.py     the loudness of a voice and its stability over several recordings
"""
