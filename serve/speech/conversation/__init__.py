"""Text in while it is written, audio out while it is spoken: contexts of conversations, for every protocol with a socket."""
