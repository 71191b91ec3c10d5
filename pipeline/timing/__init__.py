"""Times: finds where in the audio each segment, break and word is."""
