"""One benchmark scenario per file: each measures, in the same run, every system that its question concerns."""
