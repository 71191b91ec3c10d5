"""Proves what the engine and the vocoder promise on a device, and measures both."""
