"""Pages, figures and tables. Nothing here knows of models, runs or data sets."""

from __future__ import annotations
