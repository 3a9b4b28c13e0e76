"""Evaluation: metrics, protocols, intervals, foils and explanations."""

from __future__ import annotations
