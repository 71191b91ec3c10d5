"""Compiles this project's C++ once per machine and loads it."""
