"""Bodies of requests and replies, validated."""
