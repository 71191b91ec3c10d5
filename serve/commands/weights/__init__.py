"""Checkpoints and voices: fetching, generating, converting."""
