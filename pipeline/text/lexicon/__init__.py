"""Users' own pronunciations: matching words, and the library of stored lexicons."""
