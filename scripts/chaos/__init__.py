"""Chaos: mixed traffic on three nodes of one machine while faults drawn from a seed happen; a soak; a load."""
