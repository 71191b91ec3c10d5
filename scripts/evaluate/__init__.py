"""Judges of quality: parity and timing on a GPU, numerics of a configuration, intelligibility, naturalness."""
