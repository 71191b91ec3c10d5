"""Text in while it is written, audio out while it is spoken: contexts over serve/speech, for every door with a socket."""
