"""Commands for people: starting, operating, measuring and training."""
