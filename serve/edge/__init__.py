"""The fleet of boxes: what a center sends to services in one process, and how they take it."""
