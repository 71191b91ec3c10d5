"""Ingress: the parts of one ingress, and what it does beside its requests."""
