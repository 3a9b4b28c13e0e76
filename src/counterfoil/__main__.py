"""``python -m counterfoil``."""

from __future__ import annotations

import sys

from counterfoil.cli import main

sys.exit(main())
