"""Recipes: their stages, their settings, and the code that runs them on data."""

from __future__ import annotations
