"""What the server did, in the text format of Prometheus."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

QUANTILES = (0.5, 0.99)
LATEST = 2048  # requests of each route that quantiles are taken of


@final
@dataclass(frozen=True, slots=True)
class Told:
    """A number that somebody else keeps.

    Attributes:
        name: without the prefix ``counterfoil_``.
        kind: "counter" for what only grows.
        about: what it is, in a sentence.
        value: now.
    """

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    value: float


@final
class Metrics:
    """Counts and latencies by route; used from one thread."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._latest: dict[str, deque[float]] = {}
        self._sums: dict[str, float] = {}

    def note(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests[route, status] += 1
        self._latest.setdefault(route, deque(maxlen=LATEST)).append(seconds)
        self._sums[route] = self._sums.get(route, 0.0) + seconds

    def text(self, more: Sequence[Told] = ()) -> str:
        """Everything that was counted, and what else there is to tell."""
        lines = [*self._counted(), *self._timed()]
        for one in more:
            name = f"counterfoil_{one.name}"
            lines += [f"# HELP {name} {one.about}", f"# TYPE {name} {one.kind}"]
            lines.append(f"{name} {one.value:.12g}")
        return "\n".join(lines) + "\n"

    def _counted(self) -> Iterator[str]:
        yield "# HELP counterfoil_requests_total Requests answered."
        yield "# TYPE counterfoil_requests_total counter"
        for (route, status), count in sorted(self._requests.items()):
            yield f'counterfoil_requests_total{{route="{route}",status="{status}"}} {count}'

    def _timed(self) -> Iterator[str]:
        name = "counterfoil_request_seconds"
        yield f"# HELP {name} Time to answer; quantiles of the latest {LATEST}."
        yield f"# TYPE {name} summary"
        for route, latest in sorted(self._latest.items()):
            for share in QUANTILES:
                value = quantile(list(latest), share)
                yield f'{name}{{route="{route}",quantile="{share}"}} {value:.6f}'
            count = sum(n for (of, _), n in self._requests.items() if of == route)
            yield f'{name}_sum{{route="{route}"}} {self._sums[route]:.6f}'
            yield f'{name}_count{{route="{route}"}} {count}'


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that is not below a share of all.

    >>> quantile([3.0, 1.0, 2.0, 4.0], 0.5), quantile([3.0, 1.0], 0.99)
    (2.0, 3.0)
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
