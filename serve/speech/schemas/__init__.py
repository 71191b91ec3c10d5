"""What a request for speech may say, checked once for all entry points."""
