"""The console script `chattts-serve`: one entry to every command that people and operators use."""
