"""The vocoder that decodes overlapping windows with torch; runs everywhere."""
