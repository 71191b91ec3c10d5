"""Request bodies that only HTTP knows, and the bodies of replies, validated."""
