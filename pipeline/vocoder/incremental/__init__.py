"""Decodes every step once and returns the layers' state, on a CPU with AVX-512."""
