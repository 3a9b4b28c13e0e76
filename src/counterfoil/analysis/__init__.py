"""Figures and tables of the papers AOQ, NDGL and TAGS, one function each."""

from __future__ import annotations
