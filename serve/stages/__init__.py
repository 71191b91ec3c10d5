"""Stages: what an ingress asks text, acoustic model and vocoder, wherever they run."""
