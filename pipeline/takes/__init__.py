"""Attempts of a segment: the second draw of one that ends too early, and further ones of one whose words were swallowed."""
