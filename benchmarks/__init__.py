"""Measurements that are not part of the package: speed, tables of experiments, and a net.

* ``python -m benchmarks`` measures what the fast parts cost (`benchmarks.speed`).
* ``python -m benchmarks.experiments`` trains and compares (`benchmarks.experiments`).
* ``python -m benchmarks.predict`` says before training which negatives help (`benchmarks.predict`).
* ``python -m benchmarks.net`` compares results of an old commit with the working tree's.
"""

import sys


def refused(error: Exception) -> int:
    """Print what was wrong with the input, on one line; the exit code."""
    print(f"benchmarks: {' '.join(str(error).split())}", file=sys.stderr)
    return 2
