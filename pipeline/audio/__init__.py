"""Everything between the vocoder's samples and the bytes of a file: loudness, tempo, filters, containers."""
