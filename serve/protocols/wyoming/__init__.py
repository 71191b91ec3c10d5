"""Wyoming, the protocol of Home Assistant, as a translation: its events in the words of this service."""
