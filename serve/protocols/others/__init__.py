"""Protocols of one route each, as translations: Kokoro's captions, Piper's server, Vapi's custom voice."""
