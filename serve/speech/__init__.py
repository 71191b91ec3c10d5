"""One way to speak: from a request of any door to its audio, admitted, charged, measured and logged once."""
