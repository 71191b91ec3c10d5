"""Runs the text front end in a child process, so that one text cannot delay the others."""
