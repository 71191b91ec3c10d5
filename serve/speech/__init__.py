"""One request for speech from its fields to its audio, whatever door it came through."""
