"""Recipes on data: what runs them, and what searches their settings."""

from __future__ import annotations
