"""One name for each split, whatever a data set calls it."""

from __future__ import annotations

from collections.abc import Sequence

from counterfoil.spec import unknown

_SAME = {"val": "dev", "valid": "dev", "validation": "dev", "testall": "test", "training": "train"}


def canonical(name: str) -> str:
    """The name a split goes by here.

    >>> canonical("validation"), canonical("restval")
    ('dev', 'restval')
    """
    return _SAME.get(name, name)


def existing(name: str, known: Sequence[str], of: str) -> str:
    """The split that is meant by a name.

    Raises:
        ValueError: there is none; those that exist are named.
    """
    meant = [split for split in known if split == name or canonical(split) == canonical(name)]
    if not meant:
        raise ValueError(unknown(name, list(known), f"a split of {of}"))
    return name if name in meant else meant[0]
