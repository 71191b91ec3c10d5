"""Where a checkpoint lies, what is in it, and how its weights are read; random weights for tests."""
