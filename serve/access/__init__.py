"""Who may call, how much, and whether there is room."""
