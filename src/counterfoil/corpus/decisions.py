"""What somebody decided about a data set: lines of JSON that its readers honour.

    {"do": "drop", "image": "a.jpg", "was": "A cat."}
    {"do": "drop", "caption": "a.jpg#1", "was": "A dog."}
    {"do": "fix", "caption": "a.jpg#1", "was": "A dog.", "text": "A cat."}
    {"do": "true", "caption": "a.jpg#1", "was": "A cat.", "image": "b.jpg"}
    {"do": "keep", "caption": "a.jpg#1", "was": "A cat."}          looked at, and left as it is

An image is dropped with its captions. ``was`` is what the caption says, or a caption of the image,
so that decisions are never applied to other data. "true" says that a caption describes another
image too; mining leaves the pair out, and evaluation takes it for a right answer. Of a caption that
is fixed twice the last fix counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.findings import counted
from counterfoil.corpus.lines import read_lines
from counterfoil.records import Pairs
from counterfoil.spec import unknown

NAME = "decisions.jsonl"
Do = Literal["keep", "drop", "fix", "true"]
_KEYS = ("do", "image", "caption", "was", "text")


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """One decision.

    Attributes:
        do: what to do.
        image: its id, "" where the decision is about a caption.
        caption: its id, "" where the decision is about an image.
        was: what the caption, or a caption of the image, said; "" for an image without one.
        text: what the caption shall say, where it is fixed.
        where: file and line, for messages.
    """

    do: Do
    image: str
    caption: str
    was: str
    text: str = ""
    where: str = ""

    def plain(self) -> dict[str, str]:
        """As it stands in a line; what is empty is left out, but for ``was``."""
        told = {"do": self.do, "image": self.image, "caption": self.caption, "text": self.text}
        return {key: value for key, value in told.items() if value} | {"was": self.was}


def beside(source: str) -> Path | None:
    """The decisions that lie in the folder of a data set, if any do."""
    path = Path(source).expanduser()
    if not path.exists():  # scenes, or of a hub
        return None
    found = (path if path.is_dir() else path.parent) / NAME
    return found if found.is_file() else None


def read_decisions(path: Path) -> tuple[Decision, ...]:
    """The decisions of a file.

    Raises:
        ValueError: the file is missing, or a line of it is no decision.
    """
    lines = enumerate(read_lines(path, "decisions"), 1)
    return tuple(_decision(line, f"{path}, line {n}") for n, line in lines if line.strip())


def decide(corpus: Corpus, decisions: Sequence[Decision]) -> Corpus:
    """A data set as somebody decided it shall be.

    Args:
        corpus: all of the data set, as it was read.
        decisions: about its images and captions.

    Returns:
        The corpus without what was dropped, with `Corpus.decided` saying so.

    Raises:
        ValueError: a decision is about other data, or a text to be fixed is a ready-made vector.
    """
    board = _Board(corpus)
    for decision in decisions:
        board.heed(decision)
    return board.corpus()


@final
class _Board:
    """A corpus while decisions are taken about it."""

    def __init__(self, corpus: Corpus) -> None:
        self.whole, self.texts = corpus, list(corpus.texts)
        self.image = {name: row for row, name in enumerate(corpus.image_ids)}
        self.caption = {name: row for row, name in enumerate(corpus.text_ids)}
        self.images = torch.ones(len(corpus), dtype=torch.bool)
        self.kept = torch.ones(len(corpus.texts), dtype=torch.bool)
        self.true: list[tuple[int, int]] = []

    def heed(self, decision: Decision) -> None:
        image = self._row(self.image, decision.image, "image", decision.where)
        text = self._row(self.caption, decision.caption, "caption", decision.where)
        self._check(decision, image, text)
        if decision.do == "fix":
            if self.whole.text_features is not None:
                raise ValueError(
                    f"{decision.where}: the captions of {self.whole.name} are ready-made vectors "
                    "and cannot be fixed; drop the caption"
                )
            self.texts[text] = decision.text
        elif decision.do == "true":
            self.true.append((image, text))
        elif decision.do == "drop" and text >= 0:
            self.kept[text] = False
        elif decision.do == "drop":
            self.images[image] = False

    def _row(self, rows: dict[str, int], name: str, what: str, where: str) -> int:
        if name and name not in rows:
            raise ValueError(
                f"{where}: {self.whole.name} has no {what} {name!r}; the decisions are of other "
                "data, audit these"
            )
        return rows[name] if name else -1

    def _check(self, decision: Decision, image: int, text: int) -> None:
        """Refuse what was decided when the data were others."""
        own, _ = self.whole.relation.captions(torch.tensor([image]))
        rows = [text] if text >= 0 else own.tolist()
        known = [texts[row] for row in rows for texts in (self.whole.texts, self.texts)] or [""]
        if decision.was not in known:
            about = decision.caption or f"a caption of {decision.image}"
            raise ValueError(
                f"{decision.where}: {about} was {decision.was!r} when it was decided on and is "
                f"{known[0]!r} in {self.whole.name}; the decisions are of other data, audit these"
            )

    def corpus(self) -> Corpus:
        """The corpus that is left."""
        whole, owner = self.whole, self.whole.owner
        kept = self.kept & (self.images[owner.clamp(min=0)] | (owner < 0))
        if not self.images.any() or (len(kept) and not kept.any()):
            raise ValueError(f"{whole.name}: nothing is left after all decisions; drop less")
        images, texts = self.images.nonzero().squeeze(1), kept.nonzero().squeeze(1)
        left = owner[texts]
        fixed = sum(self.texts[row] != whole.texts[row] for row in texts.tolist())
        full = replace(whole, texts=self.texts, also=self._also())
        return replace(
            full.cut(images, texts, torch.where(left < 0, -1, _places(self.images)[left])),
            decided=self._words(int(kept.sum()), fixed),
        )

    def _also(self) -> Pairs | None:
        if not self.true:
            return self.whole.also
        images, texts = torch.tensor(sorted(set(self.true))).unbind(1)
        return Pairs(images, texts)

    def _words(self, captions: int, fixed: int) -> str:
        gone = int((~self.images).sum()), len(self.texts) - captions
        parts = [
            f"{counted(number, what)} {done}"
            for number, what, done in (
                (gone[0], "image", "left out"),
                (gone[1], "caption", "left out"),
                (fixed, "caption", "rewritten"),
                (len(set(self.true)), "pair", "true besides the captions' own"),
            )
            if number
        ]
        return ", ".join(parts) or "nothing left out"


def _places(kept: Tensor) -> Tensor:
    """New row of each that is kept."""
    return kept.long().cumsum(0) - 1


def _decision(line: str, where: str) -> Decision:
    try:
        plain = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(plain, dict) or not all(isinstance(value, str) for value in plain.values()):
        raise ValueError(
            f'{where} is no decision; one looks like {{"do": "drop", "caption": ..., "was": ...}}'
        )
    strange = next((key for key in plain if key not in _KEYS), None)
    if strange is not None:
        raise ValueError(f"{where}: {unknown(strange, list(_KEYS), 'a key of a decision')}")
    _check_plain(plain, where)
    found: Any = {"image": "", "caption": "", "was": "", "text": "", **plain}
    return Decision(where=where, **found)


def _check_plain(plain: dict[str, str], where: str) -> None:
    do, about = plain.get("do", ""), (bool(plain.get("image")), bool(plain.get("caption")))
    if do not in get_args(Do):
        raise ValueError(f"{where}: {unknown(do, list(get_args(Do)), 'a decision')}")
    wanted = {
        "fix": ([(False, True)], "a caption"),
        "true": ([(True, True)], "an image and a caption"),
        "drop": ([(True, False), (False, True)], "an image or a caption, one of them"),
    }.get(do, ([(True, False), (False, True), (True, True)], "an image or a caption"))
    if about not in wanted[0]:
        raise ValueError(f"{where}: {do!r} needs {wanted[1]}")
    if do == "fix" and not plain.get("text", "").strip():
        raise ValueError(f"{where}: 'fix' needs the text that shall stand there; drop it instead")
