"""What a request for speech may say, checked once, whatever the door it came through."""
