"""ElevenLabs' protocol, as a translation: its bodies, messages, lists and errors in the words of this service."""
