"""Voices: turns names into embeddings or reference recordings.

catalogue.py   the shipped voices of configs/voices.yaml, and seed:<n>
records.py     the stored form of voices created over HTTP: immutable, versioned
library.py     both together: names, versions, blends, inline embeddings
seeds.py       the embedding of a seed
strings.py     encodes and decodes ChatTTS's speaker and prompt strings
reference.py   checks an uploaded recording for cloning; vad.py finds the speech in it
measure.py     the loudness of a voice and its stability over several recordings
"""
