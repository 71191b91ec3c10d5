"""Chaos: what no single request shows: a soak that can be continued, and a load above what a service can do."""
