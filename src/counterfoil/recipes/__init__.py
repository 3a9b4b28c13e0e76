"""Built-in recipes of the papers, of CLIP fine-tuning and of photos."""

from __future__ import annotations
