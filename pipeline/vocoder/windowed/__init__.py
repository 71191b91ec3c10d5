"""Decodes overlapping windows of steps with torch, on any CPU or GPU."""
