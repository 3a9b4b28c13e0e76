"""Search: an index of image and text embeddings, approximate backends, and re-ranking."""

from __future__ import annotations
