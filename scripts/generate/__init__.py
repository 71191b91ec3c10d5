"""Writers of committed files; `python -m scripts.generate` runs them all."""
