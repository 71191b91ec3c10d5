"""SSML and control tags: what a text says about how it is spoken."""
