"""One way to speak: from a request of any entry point to its audio, admitted, charged, measured and logged once."""
