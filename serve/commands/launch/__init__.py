"""Starts Ray and the service on one machine and ends both together."""
