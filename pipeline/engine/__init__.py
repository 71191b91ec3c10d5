"""Continuous batching: sequences wait, take a slot, and decode one step per round, each by its own seed."""
