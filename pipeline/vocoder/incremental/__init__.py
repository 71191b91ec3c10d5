"""Decodes every step once and returns the layers' state, in C++ on a CPU."""
