"""HTTP server for search and explanations, with a web page."""
