"""A request that is not answered, and why."""

from __future__ import annotations

from typing import final


@final
class Refused(Exception):
    """A request is refused.

    Attributes:
        status: of HTTP, 4xx where the request is at fault.
        sentence: what was wrong, what is allowed.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the answer: when to come back, where that helps."""
        return {"retry-after": "1"} if self.status == 503 else {}
