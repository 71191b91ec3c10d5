"""The decode step in C++, for CPUs."""
