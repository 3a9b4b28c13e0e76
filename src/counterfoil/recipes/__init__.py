"""Experiments as data, and the one verb that runs them."""

from __future__ import annotations
