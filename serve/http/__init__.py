"""The HTTP server: limits, bodies, writers, errors. It knows no protocol by name and no Ray."""
