"""What operators do to a running service or to its configuration."""
