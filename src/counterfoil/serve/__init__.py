"""Search and explanations over HTTP, and a page for people."""
