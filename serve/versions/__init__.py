"""Which version of the model answers, and when one loses its traffic."""
