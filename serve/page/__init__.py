"""The page of the service and its scripts."""
