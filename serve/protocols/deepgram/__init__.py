"""Deepgram's protocol for speech, as a translation: its queries, messages and errors in the words of this service."""
