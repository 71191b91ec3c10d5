"""Codes or hidden states to samples, one batch for all streams."""
