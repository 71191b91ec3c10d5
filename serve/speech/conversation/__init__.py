"""Text in while it is written, audio out while it is spoken: contexts of conversations, for every door with a socket."""
