"""Explanations of a data set in the making: part by part, through any kill."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from counterfoil.evaluate.explanation import Explanation
from counterfoil.files import read_json, write_json
from counterfoil.recipes.mining import partial

FACTS = "facts.json"
WHAT = "explanations that are kept"


@final
class ExplainedParts:
    """Where the explanations of parts of a data set lie until all of them are there.

    Attributes:
        folder: where.
    """

    def __init__(self, out: Path, facts: Mapping[str, Any], *, resume: bool) -> None:
        """Begin, or go on.

        Args:
            out: where all of them are to go; the parts lie beside it.
            facts: what they depend on; plain values.
            resume: go on with what was stopped; without it that is refused.

        Raises:
            ValueError: something was begun there, and is not to be gone on with, or depends on
                something else.
        """
        self.folder, self._facts = partial(out), dict(facts)
        if not (self.folder / FACTS).exists():
            return
        if not resume:
            raise ValueError(
                f"{self.folder} holds explanations that were stopped; add --resume to go on with "
                "them, or delete it"
            )
        begun = read_json(self.folder / FACTS, WHAT)
        known = begun if isinstance(begun, dict) else {}
        if other := next((name for name in facts if known.get(name) != facts[name]), None):
            raise ValueError(
                f"{self.folder} was begun with another {other}; go on with what it was then, or "
                "delete it"
            )

    def load(self, number: int) -> list[Explanation] | None:
        """A part; None where it is not there yet.

        Raises:
            ValueError: it is damaged.
        """
        path = self._part(number)
        if not path.exists():
            return None
        plain = read_json(path, WHAT)
        try:
            return [Explanation.of(one) for one in plain]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} holds no explanations: {error}; delete it") from error

    def save(self, number: int, found: Sequence[Explanation]) -> None:
        """Keep a part."""
        if not (self.folder / FACTS).exists():
            write_json(self.folder / FACTS, self._facts)
        write_json(self._part(number), [one.plain() for one in found])

    def drop(self) -> None:
        """Forget them all."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _part(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"
