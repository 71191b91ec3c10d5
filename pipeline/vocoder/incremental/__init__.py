"""The vocoder that keeps state per stream and computes every step once. CPU, AVX-512."""
