"""Search: vectors of images and texts in a folder, found by a model, re-ranked by another."""

from __future__ import annotations
