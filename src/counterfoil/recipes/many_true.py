"""Evaluation against annotations that know more than one right answer: ECCV-Caption and CxC.

The annotations are the user's: they are not shipped. A folder holds one JSON object for each
direction, query id to a list of item ids (``i2t.json``, ``t2i.json``), or for CxC to a list of
[item id, rating] (``i2i.json`` and ``t2t.json`` too). Ids are the data set's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from counterfoil.corpus.corpus import Corpus
from counterfoil.engine.sweep import sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.evaluate import cxc, eccv
from counterfoil.evaluate.cxc import Crissed, Rated
from counterfoil.evaluate.eccv import ManyTrue
from counterfoil.evaluate.truth import align, read
from counterfoil.files import read_json


def eccv_caption(members: Sequence[Member], corpus: Corpus, folder: Path) -> tuple[ManyTrue, ...]:
    """MAP@R, R-Precision and R@1 both ways (ECCV-Caption, arXiv:2204.03359).

    Raises:
        ValueError: an annotation file is missing or damaged, or the split is another one.
    """
    truths = read(folder / "i2t.json"), read(folder / "t2i.json")
    texts, images = _lists(members, corpus, eccv.DEPTH)
    image_ids, text_ids = _numbers(corpus.image_ids), _numbers(corpus.text_ids)
    return (
        eccv.score(align(truths[0], image_ids, text_ids, texts), truths[0], "i2t"),
        eccv.score(align(truths[1], text_ids, image_ids, images), truths[1], "t2i"),
    )


def crisscrossed(members: Sequence[Member], corpus: Corpus, folder: Path) -> tuple[Crissed, ...]:
    """Recalls between and within modalities (CxC, arXiv:2004.15020).

    Within a modality only models with one vector per item are measured.

    Raises:
        ValueError: an annotation file is missing or damaged.
    """
    texts, images = _lists(members, corpus, cxc.DEPTH)
    image_ids, text_ids = _numbers(corpus.image_ids), _numbers(corpus.text_ids)
    found = [
        cxc.between("i2t", image_ids, text_ids, texts, _rated(folder / "i2t.json")),
        cxc.between("t2i", text_ids, image_ids, images, _rated(folder / "t2i.json")),
    ]
    if len(members) == 1 and members[0].images.tokens.shape[1] == 1:
        one = members[0]
        found.append(cxc.images(one.images.tokens[:, 0], image_ids, _rated(folder / "i2i.json")))
        found.append(
            cxc.texts(one.texts.tokens[:, 0], text_ids, corpus.owner, _rated(folder / "t2t.json"))
        )
    return tuple(found)


def table(eccv_found: Sequence[ManyTrue], cxc_found: Sequence[Crissed]) -> Iterator[Table]:
    """Both as tables for the terminal, all in percent."""
    if eccv_found:
        shown = Table("ECCV-Caption", "mAP@R", "R-Precision", "R@1", "queries")
        for e in eccv_found:
            numbers = (f"{n:.1f}" for n in (e.map_at_r, e.r_precision, e.r1))
            shown.add_row(e.direction, *numbers, f"{e.queries:,}")
        yield shown
    if cxc_found:
        shown = Table("CxC", "R@1", "R@5", "R@10", "queries", "left out")
        for c in cxc_found:
            numbers = (f"{n:.1f}" for n in (c.r1, c.r5, c.r10))
            shown.add_row(c.kind, *numbers, f"{c.queries:,}", f"{c.left_out:,}")
        yield shown


def _lists(members: Sequence[Member], corpus: Corpus, depth: int) -> tuple[Tensor, Tensor]:
    texts = TopK("image", len(corpus), min(depth, len(corpus.texts)))
    images = TopK("text", len(corpus.texts), min(depth, len(corpus)))
    sweep(members, [texts, images])
    return texts.rows, images.rows


def _numbers(ids: Sequence[str]) -> Tensor:
    try:
        return torch.tensor([int(name.rpartition("_")[2].partition(".")[0]) for name in ids])
    except ValueError:
        raise ValueError(
            f"{ids[0]!r} is not a COCO id; these annotations name images and captions by number"
        ) from None


def _rated(path: Path) -> Rated:
    plain = read_json(path, "CxC ratings")
    try:
        return {int(q): [(int(item), float(r)) for item, r in plain[q]] for q in plain}
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no CxC ratings: a JSON object from query id to a list of "
            f"[item id, rating] is needed ({error})"
        ) from error
