"""Making, editing and previewing voices."""
