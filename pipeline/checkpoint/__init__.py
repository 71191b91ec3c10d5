"""Finds checkpoints, verifies and reads their files, and generates random ones for tests."""
