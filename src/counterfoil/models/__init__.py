"""Image-text models, one file per paper."""

from __future__ import annotations
