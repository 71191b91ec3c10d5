"""Scenarios: one question each, asked of every system it concerns in the same run."""
