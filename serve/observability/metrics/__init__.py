"""Names, units and buckets of all metrics, and the objects that set them, one per deployment."""
