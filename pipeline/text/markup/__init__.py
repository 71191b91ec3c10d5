"""Reads SSML and control tags: the markup in a text that says how it is spoken."""
