"""What a crowd thinks of captions shown with pictures, one pair a line.

Five columns with tabs between them: picture, caption, share of those who say that it describes the
picture, how many do, how many do not; as in Flickr8k's ``CrowdFlowerAnnotations.txt`` (Hodosh,
Young and Hockenmaier, JAIR 47, 2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lines import read_lines

COLUMNS = "picture, caption, share of yes, yes, no"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Crowd:
    """Captions shown with pictures of a corpus, and how many took them for true.

    Attributes:
        images: (N,) long, rows of the pictures.
        texts: (N,) long, rows of the captions.
        yes: (N,) long.
        no: (N,) long.
    """

    images: Tensor
    texts: Tensor
    yes: Tensor
    no: Tensor

    def __len__(self) -> int:
        return len(self.images)

    @property
    def true(self) -> Tensor:
        """(N,) bool, whether half of the crowd or more says yes."""
        return self.yes >= self.no

    def rows(self, wanted: Tensor) -> Crowd:
        """Some of them.

        Args:
            wanted: (N,) bool, or rows.
        """
        return Crowd(self.images[wanted], self.texts[wanted], self.yes[wanted], self.no[wanted])


def read_crowd(path: Path, corpus: Corpus) -> Crowd:
    """Judgements about pictures and captions of a corpus.

    A caption is called by its own id, or as ``1.jpg#2``, the third caption of that picture.

    Raises:
        ValueError: the file is missing, a line is no judgement, or the corpus does not have a
            picture or a caption.
    """
    lines = read_lines(path, "judgements")
    found = [_judgement(path, at, line) for at, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ValueError(f"{path} holds no judgements; a line has {COLUMNS}, tabs between them")
    pictures = {name: row for row, name in enumerate(corpus.image_ids)}
    captions = _captions(corpus)
    for image, text, _, _ in found:
        for name, known, what in ((image, pictures, "picture"), (text, captions, "caption")):
            if name not in known:
                raise ValueError(
                    f"{path} judges the {what} {name!r}, which {corpus.name} does not have; name "
                    "the data that were judged"
                )
    columns = ([pictures[i] for i, *_ in found], [captions[t] for _, t, *_ in found])
    votes = ([yes for *_, yes, _ in found], [no for *_, no in found])
    return Crowd(*(torch.tensor(column) for column in (*columns, *votes)))


def _captions(corpus: Corpus) -> dict[str, int]:
    """Rows by id, and by picture and place."""
    texts, counts = corpus.relation.captions(torch.arange(len(corpus)))
    rows = iter(texts.tolist())
    known: dict[str, int] = {}
    for name, count in zip(corpus.image_ids, counts.tolist(), strict=True):
        known |= {f"{name}#{place}": next(rows) for place in range(count)}
    return known | {name: row for row, name in enumerate(corpus.text_ids)}


def _judgement(path: Path, at: int, line: str) -> tuple[str, str, int, int]:
    parts: Sequence[str] = line.split("\t")
    if len(parts) != 5 or not all(part.strip().isdecimal() for part in parts[3:]):
        raise ValueError(
            f"{path}, line {at} is no judgement: {line[:60]!r}; {COLUMNS} are needed, tabs between "
            "them"
        )
    yes, no = int(parts[3]), int(parts[4])
    if not yes + no:
        raise ValueError(f"{path}, line {at} has no votes: {line[:60]!r}; leave the line out")
    return parts[0], parts[1], yes, no
