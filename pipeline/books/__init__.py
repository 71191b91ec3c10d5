"""Long texts: cuts books into parts, keeps what is spoken of them, and assembles files with chapters."""
