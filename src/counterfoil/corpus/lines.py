"""Text files with one thing a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterfoil.files import write_text


def read_text(path: Path, what: str) -> str:
    """A text file in UTF-8, with or without a byte order mark.

    Raises:
        ValueError: it is missing or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; {what} are needed there") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}); "
            "save it as UTF-8"
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def read_lines(path: Path, what: str) -> list[str]:
    """The lines of a text file; only line feeds end a line, and blank lines count.

    Raises:
        ValueError: it is missing or not UTF-8.
    """
    lines = read_text(path, what).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write one line each; blanks within a line become single spaces."""
    write_text(path, "".join(" ".join(line.split()) + "\n" for line in lines))
