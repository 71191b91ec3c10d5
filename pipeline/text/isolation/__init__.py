"""The text front end in a child process, so that one text cannot hold up the others."""
