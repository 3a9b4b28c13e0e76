"""HTTP server for search and explanations, with a web page."""

from __future__ import annotations
