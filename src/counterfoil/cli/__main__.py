"""``python -m counterfoil.cli``."""

import sys

from counterfoil.cli import main

sys.exit(main())
