"""Where negatives come from: lists mined offline, draws, stores."""

from __future__ import annotations
