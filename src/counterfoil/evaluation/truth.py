"""What counts as true in an evaluation: own captions, pairs that were judged, or every true pair.

Truth `own` are the captions of an image. Truth `judged` adds pairs of which people said whether
they are true; what nobody judged is neither true nor false. Truth `complete` decides every pair: by
the scenes of rendered pictures, or by lists of all true pairs, as those of ECCV Caption (Chun et
al., ECCV 2022, arXiv:2204.03359) and of Crisscrossed Captions (CxC; Parekh et al., EACL 2021,
arXiv:2004.15020).

No annotations are part of this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core.config import parse_literal
from counterfoil.core.io import read_json
from counterfoil.core.types import Pairs
from counterfoil.data.corrections import VERDICTS, read_verdicts
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.evaluation.metrics import R_CAP, Direction, TruthName, queries_with_positives
from counterfoil.scoring.true_places import TrueInTile, TruePlacesReducer

LISTS = ("i2t.json", "t2i.json")
PUBLISHED_QUERIES: Mapping[Direction, int] = {"i2t": 1261, "t2i": 1332}  # of ECCV Caption
_RULE = f"mAP@R and R-precision read {R_CAP} places at most"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """What is known in one direction.

    Attributes:
        true: rows of the true pairs, or a predicate of the rows of a tile.
        false: rows of pairs that are known to be false; None for all that are not true.
        asked: (Q,) bool, the queries that count; None for those with a caption or an image.
    """

    true: Pairs | TrueInTile
    false: Pairs | None = None
    asked: Tensor | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Which pairs of a split are true, and which are known to be false.

    Attributes:
        name: "own", "judged" or "complete".
        line: for the protocol line, what is true and who says so.
        i2t: images are the queries.
        t2i: texts are the queries.
    """

    name: TruthName
    line: str
    i2t: Side
    t2i: Side

    def reducers(self, text_to_image: Tensor) -> tuple[TruePlacesReducer, TruePlacesReducer]:
        """Reducers of both directions, for one pass over the scores."""
        return (
            TruePlacesReducer("image", self.i2t.true, text_to_image, self.i2t.false),
            TruePlacesReducer("text", self.t2i.true, text_to_image, self.t2i.false),
        )

    def side(self, direction: Direction) -> Side:
        """What is known in a direction."""
        return self.i2t if direction == "i2t" else self.t2i


def open_truth(name: str, dataset: ImageTextDataset, judgements: Path | str | None = None) -> Truth:
    """The truth of a split by its name.

    Args:
        name: "own", "judged" or "complete".
        dataset: the split.
        judgements: a file or folder. For "judged": Flickr8k's ``ExpertAnnotations.txt``, its
            ``CrowdFlowerAnnotations.txt`` or a file of that form, ``corrections.jsonl`` of an
            audit, or a folder of these. For "complete": a folder of ``i2t.json`` and ``t2i.json``
            of ECCV Caption or CxC; None for `scenes`.

    Raises:
        ValueError: an unknown name, no judgements or ones that do not fit the name or the data.
    """
    chosen = parse_literal(TruthName, name, "a truth")
    path = None if judgements is None else Path(judgements)
    if path is not None and not path.exists():
        raise ValueError(f"{path} does not exist; give the file or folder of the judgements")
    if chosen == "own":
        if path is not None:
            raise ValueError(
                f"truth 'own' reads no judgements, and {path} was given; name the truth 'judged' "
                "or 'complete'"
            )
        return own_truth(dataset)
    if chosen == "judged":
        return _judged(dataset, path)
    return _of_scenes(dataset) if path is None else _listed(dataset, path)


def own_truth(dataset: ImageTextDataset) -> Truth:
    """The captions of each image and the extra positives are true, all else is false."""
    more = dataset.extra_positives
    if more is not None:  # as recalls count them
        more = queries_with_positives(more, dataset.text_to_image, len(dataset))
    side = Side(_own_pairs(replace(dataset, extra_positives=more, extra_weights=None)))
    return Truth("own", "", side, side)


def _own_pairs(dataset: ImageTextDataset, others: Iterable[tuple[int, int]] = ()) -> Pairs:
    """Own captions, extra positives and other pairs, each once."""
    own = (dataset.text_to_image >= 0).nonzero().squeeze(1)
    parts = [Pairs(dataset.text_to_image[own], own), _pairs([*others])]
    if dataset.extra_positives is not None:
        parts.append(dataset.extra_positives)
    image, text = (torch.cat([p.image for p in parts]), torch.cat([p.text for p in parts]))
    count = len(dataset.texts)
    each = torch.unique_consecutive((image * count + text).sort().values)
    return Pairs(each // count, each % count)


# -- judged ---------------------------------------------------------------------------------------


def _judged(dataset: ImageTextDataset, path: Path | None) -> Truth:
    if path is None:
        raise ValueError(
            "truth 'judged' needs judgements: a file or folder of Flickr8k's experts and crowd, of "
            "votes in that form, or corrections.jsonl of an audit (judgements=…, --judgements)"
        )
    if path.is_dir() and _has_lists(path) and not any((path / n).exists() for n in VERDICTS):
        raise ValueError(
            f"{path} holds none of {', '.join(VERDICTS)}; its lists of true pairs are for truth "
            "'complete'"
        )
    verdicts, files = read_verdicts(path, dataset)
    return judged_truth(dataset, verdicts, files)


def judged_truth(
    dataset: ImageTextDataset, verdicts: Mapping[tuple[int, int], bool], files: Sequence[str] = ()
) -> Truth:
    """Own captions, extra positives and pairs that people judged.

    Args:
        dataset: the split.
        verdicts: by image and text row.
        files: names of where they are from.
    """
    owners = dataset.text_to_image.tolist()
    others = {pair: verdict for pair, verdict in verdicts.items() if owners[pair[1]] != pair[0]}
    found = [pair for pair, verdict in others.items() if verdict]
    true = _own_pairs(dataset, found)
    known = set(zip(true.image.tolist(), true.text.tolist(), strict=True))
    side = Side(true, _pairs([pair for pair in others if pair not in known]))
    line = (
        f"judged: own captions, and {len(found):,} of {len(others):,} judged pairs of others "
        f"({', '.join(files)}); pairs that nobody judged are left out of "
        f"mAP, nDCG, AUC, mAP@R and R-precision, and count as wrong in recalls and ranks; {_RULE}"
    )
    return Truth("judged", line, side, side)


def _pairs(pairs: Sequence[tuple[int, int]]) -> Pairs:
    return Pairs(*torch.tensor(pairs, dtype=torch.long).view(-1, 2).unbind(1))


# -- complete -------------------------------------------------------------------------------------


def _of_scenes(dataset: ImageTextDataset) -> Truth:
    """Every pair of rendered scenes, decided tile by tile."""
    from counterfoil.data.scenes import graphs
    from counterfoil.data.scenes.truth import Claims

    try:
        scenes = graphs(dataset)
    except ValueError as error:
        raise ValueError(
            f"truth 'complete' has to know every true pair, and {dataset.name} "
            f"{dataset.split_name} does not tell ({error}); give a folder of lists as those of "
            "ECCV Caption (judgements=…, --judgements), or use truth 'own' or 'judged'"
        ) from None
    claims, own = Claims(scenes, dataset.texts), dataset.text_to_image

    def true_in(images: Tensor, texts: Tensor) -> Tensor:
        here = own[texts.cpu()] == images.cpu().unsqueeze(1)
        return (claims.true(images.cpu(), texts.cpu()) | here).to(images.device)

    outside = int((~claims.decided).sum())
    line = "complete: every pair decided by the scenes of the pictures"
    if outside:
        line += f" ({outside:,} captions outside their grammar are true of their own image alone)"
    side = Side(_last_kept(true_in))
    return Truth("complete", f"{line}; {_RULE}", side, side)


def _last_kept(true_in: TrueInTile) -> TrueInTile:
    """The predicate with its last answer, as both directions ask for the same tile."""
    last: list[tuple[Tensor, Tensor, Tensor]] = []

    def asked(images: Tensor, texts: Tensor) -> Tensor:
        if last and torch.equal(last[0][0], images) and torch.equal(last[0][1], texts):
            return last[0][2]
        last[:] = [(images, texts, true_in(images, texts))]
        return last[0][2]

    return asked


def _has_lists(path: Path) -> bool:
    return all((path / name).exists() for name in LISTS)


def _listed(dataset: ImageTextDataset, path: Path) -> Truth:
    """Lists of all true items by query, in both directions."""
    if path.is_file() or any((path / name).exists() for name in VERDICTS):
        raise ValueError(
            f"{path} judges some of the pairs; use truth 'judged', or give a folder of lists of "
            "all true pairs, i2t.json and t2i.json"
        )
    lists = [read_true_lists(path / name) for name in LISTS]
    image_ids, text_ids = coco_numbers(dataset.image_ids), coco_numbers(dataset.text_ids)
    i2t = _side(path / LISTS[0], *lists[0], image_ids, text_ids)
    t2i = _side(path / LISTS[1], *lists[1], text_ids, image_ids)
    assert isinstance(t2i.true, Pairs)
    flipped = Side(Pairs(t2i.true.text, t2i.true.image), None, t2i.asked)
    line = (
        f"complete: the lists of {path.name} hold all true pairs of {_count(i2t)} images and "
        f"{_count(t2i)} captions, the others are no queries"
    )
    published = (f"{number:,}" for number in PUBLISHED_QUERIES.values())
    if (_count(i2t), _count(t2i)) == tuple(published):
        line += " (ECCV Caption)"
    return Truth("complete", f"{line}; {_RULE}", i2t, flipped)


def _count(side: Side) -> str:
    return "0" if side.asked is None else f"{int(side.asked.sum()):,}"


def _side(
    path: Path, lists: Mapping[int, frozenset[int]], rated: bool, queries: Tensor, items: Tensor
) -> Side:
    """The true pairs of a file, rows of queries and of items as images and texts.

    A query whose list is empty counts as missed, one without a list is not asked; items of other
    splits are left out, and so are queries of rated lists, which cover several splits.
    """
    query_rows = {number: row for row, number in enumerate(queries.tolist())}
    item_rows = {number: row for row, number in enumerate(items.tolist())}
    missing = [query for query in lists if query not in query_rows]
    lists = {query: true for query, true in lists.items() if query in query_rows}
    if not lists or (missing and not rated):
        raise ValueError(
            f"{len(missing)} of the {len(missing) + len(lists)} queries of {path} are not among "
            f"the {len(queries)} of the split{f' (the first is {missing[0]})' if missing else ''}; "
            "evaluate the split that the lists were written for"
        )
    asked = torch.zeros(len(queries), dtype=torch.bool)
    asked[[query_rows[query] for query in lists]] = True
    pairs = [
        (query_rows[query], item_rows[item])
        for query, true in lists.items()
        for item in sorted(true)
        if item in item_rows
    ]
    return Side(_pairs(pairs), None, asked)


def read_true_lists(path: Path) -> tuple[dict[int, frozenset[int]], bool]:
    """Read the true items of each query from JSON, and whether they are rated.

    ECCV Caption (image and caption numbers of the test split) and CxC (rated, of several splits)
    have such lists.

    A file holds ``{"query id": [item id, …], …}``, or ``[item id, rating]`` in place of an id.
    Ids are COCO's numbers.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    plain = read_json(path, "a ground-truth file")
    try:
        lists = {int(query): frozenset(map(_item, plain[query])) for query in plain}
        return lists, any(isinstance(item, list) for items in plain.values() for item in items)
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise ValueError(
            f"{path} is not a ground-truth file: a JSON object from query id to a list of item "
            f"ids is needed ({error})"
        ) from error


def _item(plain: Any) -> int:
    return int(plain[0] if isinstance(plain, list) else plain)


def coco_numbers(ids: Sequence[str]) -> Tensor:
    """(N,) COCO's numbers of images or captions.

    Raises:
        ValueError: an id does not end with a number.
    """
    try:
        return torch.tensor([int(name.rpartition("_")[2].partition(".")[0]) for name in ids])
    except ValueError:
        raise ValueError(
            f"{ids[0]!r} is not a COCO id; these annotations name images and captions by number"
        ) from None
