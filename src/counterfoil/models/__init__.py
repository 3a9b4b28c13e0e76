"""Image-text retrieval models, one file per model, with its checkpoint conversion."""

from __future__ import annotations
