"""Built-in recipes of the papers, of CLIP fine-tuning and of photos, and grid search."""

from __future__ import annotations
