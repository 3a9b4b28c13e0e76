"""What each kind of stage checks and does."""
