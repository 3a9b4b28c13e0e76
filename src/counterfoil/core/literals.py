"""Words that stand for a choice, checked against the choices there are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args


def parse_choice(choices: Iterable[str], text: object, what: str) -> str:
    """The text, if it is one of the choices.

    Args:
        choices: all that are allowed.
        text: what was given.
        what: what it has to be, as in "a tie rule".

    Raises:
        ValueError: it is none of them; the nearest one is named.
    """
    from counterfoil.spec import unknown

    known = list(choices)
    for choice in known:
        if choice == text:
            return choice
    raise ValueError(unknown(str(text), known, what))


def parse_literal(kind: Any, text: object, what: str) -> Any:
    """The text, if it is a value of a `Literal` type.

    Args:
        kind: the type, as in ``Literal["row", "optimistic"]``.
        text: what was given.
        what: what it has to be, as in "a tie rule".

    Raises:
        ValueError: it is none of them; the nearest one is named.
    """
    return parse_choice(get_args(kind), text, what)
