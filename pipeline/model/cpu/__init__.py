"""The decode step in C++ for CPUs with AVX-512."""
