"""Settings and limits of the server."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import final

MEGABYTE = 1_000_000


@final
@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Address and limits of the server.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 for any free port.
        names: further names by which browsers reach it, through a proxy.
        key: value required in the header ``X-API-Key``; None for no key.
        upload: maximum bytes of a request body.
        pixels: maximum pixels of an uploaded picture, checked before it is decoded.
        caption: maximum characters of a caption.
        top: maximum results of a query.
        seconds: time limit of an answer; the request body must arrive in half of it.
        decoders: processes that decode pictures, one at a time each; 25 million pixels take half
            a gigabyte there.
        decoding: CPU seconds of one picture, after which its process is killed.
        uploads: uploaded pictures in work before further ones get status 503.
        pictures: decoded pictures that may wait for the model; others wait undecoded.
        connections: open connections before further requests get status 503.
        waiting: queries that may wait before further ones get status 503.
        explaining: explanations that may wait before further ones get status 503.
        at_once: maximum queries of a batch.
        gather: seconds to collect queries for a batch.
        reload: seconds between looks at the files of the index, which is opened again where they
            have changed.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    key: str | None = None
    upload: int = 10 * MEGABYTE
    pixels: int = 25 * MEGABYTE
    caption: int = 1000
    top: int = 100
    seconds: float = 30.0
    decoders: int = 2
    decoding: int = 4
    uploads: int = 32
    pictures: int = 8
    connections: int = 512
    waiting: int = 1000
    explaining: int = 8
    at_once: int = 64
    gather: float = 0.004
    reload: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port {self.port} does not exist; give one of 0 to 65535")
        for name in self.names:
            if not re.fullmatch(r"[\w.-]+", name):
                raise ValueError(
                    f"the public name {name!r} is no host name; give one without a scheme, a port "
                    "or a path, as photos.example.org"
                )
        if self.key is not None and not re.fullmatch(r"[!-~]([ -~]*[!-~])?", self.key):
            raise ValueError(
                "the API key is empty, begins or ends with a blank, or has letters beyond ASCII, "
                "which no header carries; give another"
            )

    @property
    def local(self) -> bool:
        """True if the server listens on the loopback interface only."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is loopback.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
