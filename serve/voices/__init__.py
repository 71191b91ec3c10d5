"""Creating, editing and previewing voices."""
