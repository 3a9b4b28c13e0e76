"""``python -m benchmarks``: the speed figures, see `benchmarks.speed`."""

from __future__ import annotations

from benchmarks.speed.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
