"""Images and texts, who describes whom, and where they are read from."""
