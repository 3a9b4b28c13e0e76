"""Foundations that every other package may import: console, artifacts, resumable work, literals."""

from __future__ import annotations
