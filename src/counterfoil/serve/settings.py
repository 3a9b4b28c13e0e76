"""What a server allows."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import final

MEGABYTE = 1_000_000


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What a server allows; a request that wants more is refused in a sentence.

    Attributes:
        host: address to listen at.
        port: to listen at; 0 for any that is free.
        key: what requests must carry in the header ``X-API-Key``; None for nothing.
        upload: bytes of a request, at most.
        pixels: of an uploaded picture, at most; judged before it is decoded.
        caption: characters of a caption, at most.
        top: results of a query, at most.
        seconds: that a request may take, and its head to arrive.
        decoders: pictures that are decoded at once; others wait.
        pictures: that wait for the model once they are decoded; others wait undecoded.
        connections: that may be open at once; for one more the one that was silent longest is
            closed, and where all are being answered, others are told to come back.
        waiting: queries that may wait for an answer; others are told to come back.
        explaining: explanations that may wait, beside the one that is found; others are told to
            come back.
        at_once: queries that are answered together, at most.
        gather: seconds to wait for more queries before they are answered together.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    upload: int = 10 * MEGABYTE
    pixels: int = 25 * MEGABYTE
    caption: int = 1000
    top: int = 100
    seconds: float = 30.0
    decoders: int = 4
    pictures: int = 8
    connections: int = 512
    waiting: int = 1000
    explaining: int = 8
    at_once: int = 64
    gather: float = 0.004

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port {self.port} does not exist; give one of 0 to 65535")
        if self.key is not None and not re.fullmatch(r"[!-~]([ -~]*[!-~])?", self.key):
            raise ValueError(
                "the API key is empty, begins or ends with a blank, or has letters beyond ASCII, "
                "which no header carries; give another"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
