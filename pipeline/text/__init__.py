"""Text to token prompts: reading markup, normalising, splitting into segments, tokenising."""
