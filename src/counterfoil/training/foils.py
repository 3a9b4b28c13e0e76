"""Foils of the captions that are trained on, from a foil set, with pictures of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core.console import info
from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch, Needs, Role
from counterfoil.data.dataset import ImageTextDataset, images_saying, plain_caption
from counterfoil.data.processor import ProcessedDataset
from counterfoil.evaluation.foils.sets import FoilSet, named_places, open_foil_set
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.sources import MinedExtras, NegativeSource, PlannedTraining
from counterfoil.scoring.encode import gather_parts, gather_shards, shard_index

CAPTIONS = Needs(roles=frozenset({Role.WRITTEN}))
BOTH = CAPTIONS | Needs(roles=frozenset({Role.WRITTEN_IMAGE, Role.WRITTEN_PAIR}))


@final
class Foils(NegativeSource):
    """One foil of each anchor caption, drawn anew at each visit, and its picture if wanted.

    A foil set is any that `counterfoil foils` reads: with "negative_image" it has pictures of which
    the foils are true. Entries are matched with captions of the training split by the name of the
    image, without folder and ending, and by the caption, without case and final full stop. Foils of
    the whole batch are scored with all of its images, as NegCLIP appends them; their pictures, if
    wanted, with all captions and all foils. An anchor without a foil has no pairs, and a foil that
    says what a caption says is no negative of its image.

    For `InfoNCEWithCandidatesLoss`, or `MarginRankingLoss` of a role; with pictures for
    `TripletCLIPLoss`. Roles: "written"; with pictures "written image" and "written pair".

    >>> Trainer(model, loss=loss, train=data, sources=[Foils("foils.jsonl")])  # doctest: +SKIP
    """

    anchors_only = True
    seed_name = "foils"

    def __init__(self, foils: FoilSet | str | Path, *, pictures: bool = True) -> None:
        """Name the foils; `check` reads them.

        Args:
            foils: an open set; or its file or folder, with that of its pictures or features, if it
                is not ``images`` beside it, as in "mine.jsonl:images=pictures/".
            pictures: whether the pictures of foils are trained on.
        """
        self.foils, self.pictures = foils, pictures
        self.gives = BOTH if pictures else CAPTIONS
        self._set: FoilSet | None = None
        self._inputs: ProcessedDataset | None = None
        self._items: dict[int, list[tuple[int, int]]] = {}  # by caption: picture and foil
        self._true: dict[int, set[int]] = {}  # by foil: images with a caption that says the same
        self._words = torch.empty(0), torch.empty(0)  # numbers of what captions and foils say

    def check_plan(self, training: PlannedTraining) -> None:
        """Check that the foils are of these captions.

        Raises:
            ValueError: see `check`.
        """
        self._match(training.data)

    def check(self, model: RetrievalModel, data: ImageTextDataset) -> None:
        """Read the foils, and match them with the captions.

        Raises:
            ValueError: there are none of these captions, or pictures are wanted and there are none.
        """
        self._match(data)
        assert self._set is not None
        kept, entries = sum(map(len, self._items.values())), len(self._set)
        info(
            f"{self._set.name}: foils of {len(self._items):,} of {len(data.texts):,} captions of "
            f"{data.name} ({data.split_name})"
            + (f"; {entries - kept:,} entries are of no such caption" if kept < entries else "")
        )

    def _match(self, data: ImageTextDataset) -> None:
        found = self._set = self._set or open_foils(self.foils)
        if found.task == "judged":
            raise ValueError(f"{found.name} has no foils of a caption; give a set that has")
        if self.pictures and found.task != "crossed":
            raise ValueError(
                f"{found.name} has no pictures of its foils, a negative_image beside each "
                "negative_caption; give them, or train on the captions alone with pictures=False"
            )
        rows: dict[tuple[str, str], list[int]] = {}
        for row, owner in enumerate(data.text_to_image.tolist()):
            if owner >= 0:
                key = _stem(data.image_ids[owner]), plain_caption(data.texts[row])
                rows.setdefault(key, []).append(row)
        texts, names = found.dataset.texts, found.dataset.image_ids
        said = images_saying(data, texts)
        plain = [plain_caption(text) for text in texts]
        self._true = {row: said[words] for row, words in enumerate(plain) if words in said}
        self._words = _numbers(data, plain)
        self._items = {}
        for item in found.items:
            key = _stem(names[item.images[0]]), plain[item.texts[0]]
            for row in rows.get(key, ()):
                for foil in item.texts[item.positives :]:
                    if int(data.text_to_image[row]) not in self._true.get(foil, ()):
                        self._items.setdefault(row, []).append((item.images[-1], foil))
        if not self._items:
            first = found.items[0]
            raise ValueError(
                f"{found.name} has no foil of a caption of {data.name} ({data.split_name}); it has "
                f"those of {names[first.images[0]]!r}, {texts[first.texts[0]]!r}, and the data "
                f"have {data.image_ids[0]!r}, {data.texts[0]!r}"
            )

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Make the inputs of the model.

        Raises:
            ValueError: the model reads no words, and the foils have no vectors; or it reads
                images or features of pictures, and there are none.
        """
        assert self._set is not None, "`check` opens it"
        vectors = self._set.dataset.text_features
        if data.original.processor.tokenizer is None and vectors is None:
            raise ValueError("this model compares ready-made vectors and cannot read foils")
        reads, there = data.original.processor.image_processor, self._set.dataset
        for wanted, read, given in (
            ("features", reads.reads_features, there.features),
            ("images", reads.reads_pixels, there.pictures),
        ):
            if self.pictures and read and given is None:
                raise ValueError(
                    f"this model reads {wanted} and {self._set.name} comes without; name the "
                    f"folder of those of its pictures, as in my-set/:{wanted}=folder/"
                )
        self._inputs = data.original.processor.process(self._set.dataset)

    def describe(self) -> dict[str, Any]:
        assert self._set is not None, "`check` opens it"
        items = sha256(repr([(item.images, item.texts) for item in self._set.items]).encode())
        content = f"{self._set.dataset.fingerprint}-{items.hexdigest()[:16]}"
        return {**super().describe(), "foils": content, "pictures": self.pictures}

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return the scores of foils and of their pictures, the same on every process."""
        image, text = batch.anchors.image, batch.anchors.text
        drawn: list[tuple[int, int]] = []
        owners: list[int] = []  # the anchor of each foil
        for anchor, row in enumerate(batch.text_rows[text.cpu()].tolist()):
            if items := self._items.get(row):
                drawn.append(items[int(torch.randint(len(items), (), generator=rng))])
                owners.append(anchor)
        if not drawn:
            none = scores.new_full((len(text), len(text)), -torch.inf)
            return MinedExtras(scores=dict.fromkeys(self.gives.roles, none))
        assert self._inputs is not None, "`begin` makes them"
        pictures, foils = (torch.tensor(rows) for rows in zip(*drawn, strict=True))
        places, device = torch.tensor(owners), text.device

        def table(found: Tensor, true: Tensor, rows: Tensor | None = None) -> Tensor:
            """(B, B) scores of (b, F) foils, -inf where there is none and where it is true."""
            found = found.masked_fill(true.to(device), -torch.inf)
            whole = found.new_full((len(text), len(text)), -torch.inf)
            at = torch.arange(len(text)) if rows is None else rows
            return whole.index_put((at.to(device).unsqueeze(1), places.to(device)), found)

        def scored(images: Embeddings, texts: Embeddings) -> Tensor:
            def score(rows: Tensor | slice) -> Tensor:
                return model.score_matrix(images.rows(rows), texts)

            return gather_shards(len(images), score, device)

        anchors = views.inference
        written = _encoded(model.encode_texts, self._inputs.texts(foils), device)
        true = self._true_of(batch.image_rows[image.cpu()], foils)
        by_role = {Role.WRITTEN: table(scored(anchors.images, written)[image], true)}
        if self.pictures:
            shown = _encoded(model.encode_images, self._inputs.images(pictures), device)
            said, words = self._words[0][batch.text_rows[text.cpu()]], self._words[1][foils]
            found = scored(shown, anchors.texts)[:, text].T
            by_role[Role.WRITTEN_IMAGE] = table(found, said.unsqueeze(1) == words)
            same = words.unsqueeze(1) == words
            same.fill_diagonal_(fill_value=False)
            by_role[Role.WRITTEN_PAIR] = table(scored(shown, written), same, places)
        return MinedExtras(scores=by_role)

    def _true_of(self, images: Tensor, foils: Tensor) -> Tensor:
        """(B, F) bool, True where a foil says what a caption of the image says."""
        true = torch.zeros(len(images), len(foils), dtype=torch.bool)
        for place, foil in enumerate(foils.tolist()) if self._true else ():
            if owners := self._true.get(foil):
                true[:, place] = torch.isin(images, torch.tensor(sorted(owners)))
        return true


def _encoded(
    encode: Callable[[ModalityBatch], Embeddings], items: ModalityBatch, device: torch.device
) -> Embeddings:
    """Encode items of no data set, on each process its share."""
    items = replace(items, ids=torch.full_like(items.ids, -1)).to(device)
    return gather_parts(encode(items.rows(shard_index(len(items), device))), len(items))


def _numbers(data: ImageTextDataset, plain: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(T,) and (F,) numbers of captions and foils, equal for two that say the same.

    Never for two where equal captions count as negatives.
    """
    if data.positives != "text":
        return torch.full((len(data.texts),), -1), torch.arange(len(plain))
    number = {words: row for row, words in reversed(list(enumerate(plain)))}
    said = [number.get(plain_caption(text), -1) for text in data.texts]
    return torch.tensor(said), torch.tensor([number[words] for words in plain])


def open_foils(foils: FoilSet | str | Path) -> FoilSet:
    """Open a foil set as it is typed, with its folders behind a colon.

    Raises:
        ValueError: there is none.
    """
    if isinstance(foils, FoilSet):
        return foils
    names, places = named_places([str(foils)])
    return open_foil_set(names, **places, split="train", seed=0)


def _stem(name: str) -> str:
    return PurePosixPath(name).stem
