"""Benchmarks: each prints a table for people and one JSON line, and writes it to results/ with hardware and commit inside."""
