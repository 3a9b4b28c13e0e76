"""Negatives and models in the files of other tools."""

from __future__ import annotations
