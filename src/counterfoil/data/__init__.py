"""Data sets: readers, features, images, tokenizers and batching."""

from __future__ import annotations
