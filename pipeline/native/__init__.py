"""Compiles our C++ once per machine and loads it."""
