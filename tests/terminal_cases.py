"""Reading what a program wrote to a terminal."""

import os


def written_to(ours: int) -> str:
    """Everything written to the other end of a pseudo-terminal, closed by now; closes ours.

    While the other end is open, a read gives what has arrived: half a line on a busy machine.
    """
    parts = []
    while True:
        try:
            part = os.read(ours, 1 << 20)
        except OSError:  # Linux ends a hung-up terminal with an error, macOS with nothing
            part = b""
        if not part:
            break
        parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()
