"""Mined negatives: ranked lists in memory, and on disk with their provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, final

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from counterfoil import __version__
from counterfoil.core.artifact import Artifact, ArtifactFormat, ArtifactManifest
from counterfoil.core.console import warn
from counterfoil.data.contents import ContentDigests
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.scoring.encode import Side

EQUAL = "texts that say what a caption of the image says"  # what is removed for that reason
_SAID: set[str] = set()  # one folder of lists is opened several times
_AT_ONCE = 16384  # lists checked together, which bounds memory

# words of tables of negatives, see `counterfoil.negatives.tables`
Direction = Literal["image-to-text", "text-to-image"]
Form = Literal["triplet", "n-tuple", "labeled-pair"]
TO_TEXT: Direction = "image-to-text"
TO_IMAGE: Direction = "text-to-image"
MOST = 8  # negatives of a query


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HardNegativeLists:
    """The hardest wrong counterparts, hardest first; -1 fills lists that are short.

    Attributes:
        texts: (I, h) int32, text rows.
        images: (T, h') int32, image rows.
        text_scores: (I, h) float16, if known; -inf for -1.
        image_scores: (T, h') float16, if known.
        true_scores: (T,) float16, score of each text with its image, if known; -inf for a text
            without one.
    """

    texts: Tensor
    images: Tensor
    text_scores: Tensor | None = None
    image_scores: Tensor | None = None
    true_scores: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.texts.dtype == self.images.dtype == torch.int32
        assert (self.text_scores is None) == (self.image_scores is None)

    def __repr__(self) -> str:
        return f"HardNegativeLists({self.describe()})"

    def describe(self) -> str:
        """Return the number of lists and their lengths as a phrase."""
        (images, texts_each), (texts, images_each) = self.texts.shape, self.images.shape
        return (
            f"{texts_each:,} texts of each of {images:,} images and {images_each:,} images of each "
            f"of {texts:,} texts"
        )

    def checked(self, relation: Relation) -> HardNegativeLists:
        """Check that these can be the lists of a data set; return them without its true pairs.

        Pairs that the data set spares, as a text that says what a caption of the image says, are
        left out; the lists are as long as before, with -1 at the end.

        Raises:
            ValueError: another number of images or texts, or a true pair among the negatives.
        """
        sizes = len(self.texts), len(self.images)
        expected = relation.images, len(relation.text_to_image)
        if sizes != expected:
            raise ValueError(
                f"the lists are of {sizes[0]} images and {sizes[1]} texts, but the corpus has "
                f"{expected[0]} and {expected[1]}; mine them again from this corpus"
            )
        text_to_image = relation.text_to_image.int()
        image = torch.arange(relation.images, dtype=torch.int32).unsqueeze(1)
        true = 0
        for part in list_parts(len(self.texts)):
            texts = self.texts[part]
            true += int(((text_to_image[texts.long()] == image[part]) & (texts >= 0)).sum())
        true += int(((self.images == text_to_image.unsqueeze(1)) & (self.images >= 0)).sum())
        if true:
            raise ValueError(
                f"the lists hold {true} pairs that are true in this corpus; they were made from "
                "captions in another order or of other images, so mine them again"
            )
        if not relation.spares_pairs:
            return self
        by_image = _without_spared(self.texts, self.text_scores, relation, by_image=True)
        by_text = _without_spared(self.images, self.image_scores, relation, by_image=False)
        return HardNegativeLists(by_image[0], by_text[0], by_image[1], by_text[1], self.true_scores)

    def check_order(self) -> None:
        """Check that these can be ranked lists, whoever wrote them.

        Raises:
            ValueError: an item twice in a list, or scores that are not finite or ascend.
        """
        twice = ascending = wild = 0
        for rows, scores in ((self.texts, self.text_scores), (self.images, self.image_scores)):
            for part in list_parts(len(rows)):
                listed = rows[part] >= 0
                ordered = torch.from_numpy(np.sort(rows[part].numpy(), axis=1))
                repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
                twice += int(repeated.any(1).sum())
                if scores is None:
                    continue
                # a rounding of float16 may exchange neighbours
                values = scores[part].float().masked_fill(~listed, -torch.inf)
                room = values[:, :-1].abs().nan_to_num(0, 0, 0) * 2**-9
                ascending += int((values[:, 1:] > values[:, :-1] + room).any(1).sum())
                wild += int((~values.isfinite() & listed).any(1).sum())
        if wild:
            raise ValueError(
                f"{wild:,} lists hold scores that are no numbers, or larger than float16 has; "
                f"{MINED.remedy}"
            )
        if twice or ascending:
            fault = f"{twice:,} lists hold an item twice"
            if ascending:
                fault = f"the scores of {ascending:,} lists ascend, and the hardest comes first"
            raise ValueError(f"{fault}; {MINED.remedy}")


def _without_spared(
    rows: Tensor, scores: Tensor | None, relation: Relation, *, by_image: bool
) -> tuple[Tensor, Tensor | None]:
    """(Q, k) lists and their scores without the pairs that a data set spares."""
    copied = False
    for part in list_parts(len(rows)):
        listed = rows[part].long()
        query = torch.arange(part.start, part.start + len(listed)).unsqueeze(1).expand_as(listed)
        pairs = (query, listed) if by_image else (listed, query)
        out = (relation.exempt_weight(*pairs) >= 0) & (listed >= 0)
        lines = out.any(1).nonzero().squeeze(1)
        if not len(lines):
            continue
        if not copied:
            rows, scores, copied = rows.clone(), None if scores is None else scores.clone(), True
        order = out[lines].byte().argsort(dim=1, stable=True)
        gone = out[lines].gather(1, order)
        lines += part.start
        rows[lines] = rows[lines].gather(1, order).masked_fill(gone, -1)
        if scores is not None:
            scores[lines] = scores[lines].gather(1, order).masked_fill(gone, -torch.inf)
    return rows, scores


def usable_entries(
    lists: Tensor, usable: Tensor, scores: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Put the usable rows of lists first, in order.

    Args:
        lists: (Q, k) rows.
        usable: (R,) bool, rows that count.
        scores: (Q, k) of the entries, or None.

    Returns:
        The lists, (Q,) the number of usable entries of each, and the scores in the same order.
    """
    is_usable = torch.cat(
        [(usable[lists[p].long()] & (lists[p] >= 0)) for p in list_parts(len(lists))]
    )
    if bool((~is_usable[:, :-1] & is_usable[:, 1:]).any()):
        order = (~is_usable).byte().argsort(dim=1, stable=True)
        lists = lists.gather(1, order)
        scores = scores if scores is None else scores.gather(1, order)
    return lists, is_usable.sum(1), scores


def degenerate_anchors(
    texts: Tensor, images: Tensor, relation: Relation, counts: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the anchor captions whose mined texts and images all belong together.

    A text describes one image. So an anchor with two different mined images has a wrong pair of
    negatives, whatever its texts; with one mined image, all its texts must describe that one.

    Args:
        texts: (I, h) usable mined texts.
        images: (T, h') usable mined images.
        relation: image of each text.
        counts: (I,) and (T,) number of usable entries of each list.
    """
    text_counts, image_counts = counts
    place = torch.arange(images.shape[1])
    single = torch.cat(
        [
            ((images[p] == images[p, :1]) | (place >= image_counts[p, None])).all(1)
            for p in list_parts(len(images))
        ]
    )
    rows = (single & (relation.text_to_image >= 0)).nonzero().squeeze(1)
    own = relation.text_to_image[rows]
    listed = relation.text_to_image.int()[texts[own].long()] == images[rows, :1]
    beyond = torch.arange(texts.shape[1]) >= text_counts[own].unsqueeze(1)
    return rows[(listed | beyond).all(1)]


def list_parts(count: int) -> Iterator[slice]:
    """Yield slices of rows, so that nothing as large as the lists is allocated beside them."""
    for start in range(0, max(count, 1), _AT_ONCE):
        yield slice(start, start + _AT_ONCE)


@final
class ListCounts(BaseModel, frozen=True):
    """How full the lists of one direction are.

    Attributes:
        kept: entries of all lists.
        lists: number of lists.
        short: lists that are shorter than the longest may be, and not empty.
        empty: lists without an entry.
    """

    kept: int
    lists: int
    short: int
    empty: int

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Count the entries of (Q, k) lists, -1 for none."""
        lengths = torch.cat([(rows[part] >= 0).sum(1) for part in list_parts(len(rows))])
        empty, full = int((lengths == 0).sum()), int((lengths == rows.shape[1]).sum())
        return cls(
            kept=int(lengths.sum()),
            lists=len(rows),
            short=len(rows) - empty - full,
            empty=empty,
        )

    def __str__(self) -> str:
        return (
            f"{self.kept:,} entries in {self.lists:,} lists, of which {self.short:,} are short and "
            f"{self.empty:,} empty"
        )


@final
class NegativeManifest(ArtifactManifest):
    """Provenance of mined lists, so that they are never read for other data.

    Attributes:
        corpus: fingerprint of the data set whose rows the lists hold.
        split: the mined split, as in "train".
        sources: models whose mean score ranked the negatives; () if unknown.
        image_count: images, I.
        text_count: texts, T.
        texts_per_image: longest list of an image, h.
        images_per_text: longest list of a text, h'.
        scored: whether the scores are stored beside the rows.
        seed: of random choices, if there were any.
        filters: descriptions of the filters, in order.
        proposing: models that proposed the pairs to score; () for all pairs, and where `precision`
            names FAISS IVF.
        proposals: proposals for each listed negative; 0 for all pairs.
        precision: how the pairs were scored; "" for all of them in float32.
        texts_of_images: how full the lists of images are; None where it was not counted.
        images_of_texts: how full the lists of texts are.
        removed: number of pairs that each filter left out, of all pairs that were scored: of the
            texts of images ("image") and of the images of texts ("text"). A pair counts for the
            first filter that leaves it out.
        contents: what tells that pictures or features were exchanged.
    """

    corpus: str
    split: str
    sources: tuple[ModelSource, ...]
    image_count: int = Field(ge=0)
    text_count: int = Field(ge=0)
    texts_per_image: int = Field(ge=1)
    images_per_text: int = Field(ge=1)
    scored: bool
    seed: int | None = None
    filters: tuple[str, ...] = ()
    proposing: tuple[ModelSource, ...] = ()
    proposals: int = Field(default=0, ge=0)
    precision: str = ""
    texts_of_images: ListCounts | None = None
    images_of_texts: ListCounts | None = None
    removed: dict[str, dict[Side, int]] = Field(default_factory=dict)
    contents: ContentDigests = ContentDigests()

    def summary(self) -> list[str]:
        """Return what the scores are, and a line for each direction and what each filter left out.

        Lists that no model made have no scores.
        """
        score = " + ".join(dict.fromkeys(source.score for source in self.sources if source.score))
        sides = (
            ("texts of images", self.texts_of_images),
            ("images of texts", self.images_of_texts),
        )
        lines = [f"score: {score}"] if score else []
        lines += [f"{name}: {counts}" for name, counts in sides if counts is not None]
        for phrase, removed in self.removed.items():
            texts, images = removed.get("image", 0), removed.get("text", 0)
            lines.append(
                f"left out, {phrase}: {texts:,} texts of images, {images:,} images of texts"
            )
        return lines

    def check_contents(self, dataset: ImageTextDataset, where: str) -> None:
        """Warn if pictures or features of the data have been exchanged since the lists were mined.

        Args:
            dataset: the data that the lists are of.
            where: names the lists.
        """
        exchanged = self.contents.exchanged(ContentDigests.of(dataset))
        note = (
            f"the {' and '.join(exchanged)} of {dataset.name} ({dataset.split_name}) are others "
            f"than those that {where} were mined from; mine again, unless they are copies in "
            "another form"
        )
        if exchanged and note not in _SAID:
            _SAID.add(note)
            warn(note)


MINED = ArtifactFormat(
    name="mined negatives",
    manifest=NegativeManifest,
    remedy="mine again with `counterfoil mine`",
    origin="was mined from",
)


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NegativeStore:
    """Ranked hard negatives of a data set and their provenance.

    On disk a folder: ``manifest.json``, ``texts.npy`` (I, h) and ``images.npy`` (T, h') int32,
    and, with scores, ``text_scores.npy`` and ``image_scores.npy`` float16, and (T,)
    ``true_scores.npy`` float16 where true pairs were scored, too.
    """

    manifest: NegativeManifest
    lists: HardNegativeLists

    def __repr__(self) -> str:
        lines = [f"NegativeStore({self.manifest.split}: {self.lists.describe()})"]
        return "\n  ".join([*lines, *self.manifest.summary()])

    @classmethod
    def of(
        cls,
        lists: HardNegativeLists,
        *,
        dataset: str,
        split: str,
        sources: tuple[ModelSource, ...],
        seed: int | None = None,
        filters: tuple[str, ...] = (),
        proposing: tuple[ModelSource, ...] = (),
        proposals: int = 0,
        precision: str = "",
        removed: Mapping[str, dict[Side, int]] | None = None,
        contents: ContentDigests | None = None,
    ) -> Self:
        """Create a store of these lists; for the other arguments see `NegativeManifest`."""
        manifest = NegativeManifest(
            corpus=dataset,
            split=split,
            sources=sources,
            image_count=len(lists.texts),
            text_count=len(lists.images),
            texts_per_image=lists.texts.shape[1],
            images_per_text=lists.images.shape[1],
            scored=lists.text_scores is not None,
            seed=seed,
            filters=filters,
            proposing=proposing,
            proposals=proposals,
            precision=precision,
            texts_of_images=ListCounts.of(lists.texts),
            images_of_texts=ListCounts.of(lists.images),
            removed=dict(removed or {}),
            contents=contents or ContentDigests(),
            version=__version__,
        )
        return cls(manifest, lists)

    def judged(self, lists: HardNegativeLists, sources: tuple[ModelSource, ...]) -> NegativeStore:
        """The store of the same pairs with the scores and in the order of other models."""
        proposing = self.manifest.proposing or self.manifest.sources
        update = {"scored": True, "sources": sources, "proposing": proposing, "proposals": 1}
        manifest = self.manifest.model_copy(update={**update, "version": __version__})
        return NegativeStore(manifest, lists)

    def check_filled(self) -> None:
        """Refuse lists that are empty in a direction, which nothing could be trained on.

        Raises:
            ValueError: they are; the filter that left out most is named.
        """
        manifest, mined = self.manifest, self.lists
        sides: tuple[tuple[Side, str, Tensor], ...] = (
            ("image", "caption of any image", mined.texts),
            ("text", "image of any caption", mined.images),
        )
        for side, noun, rows in sides:
            if bool((rows >= 0).any()):
                continue
            removed = {phrase: counts.get(side, 0) for phrase, counts in manifest.removed.items()}
            most = max(removed, key=lambda phrase: removed[phrase], default="")
            if not most or not removed[most]:
                raise ValueError(
                    f"no wrong {noun} is left to list; at least two described images are needed, "
                    "whose captions differ"
                )
            pairs = manifest.image_count * manifest.text_count
            remedy = (
                "give captions that tell the images apart, or count equal ones as negatives with "
                "positives=id"
                if most == EQUAL
                else "loosen that filter or leave it out"
            )
            raise ValueError(
                f"no wrong {noun} is left to list: of {pairs:,} pairs, {removed[most]:,} were left "
                f"out as {most}; {remedy}"
            )

    def save(self, folder: Path) -> None:
        """Write the folder, whole or not at all; an older store there is replaced.

        Raises:
            ValueError: something else is there.
        """
        names = ("texts", "images", "text_scores", "image_scores", "true_scores")
        tensors = {name: getattr(self.lists, name) for name in names}
        arrays = {f"{name}.npy": t.numpy() for name, t in tensors.items() if t is not None}
        MINED.save(folder, self.manifest, arrays)

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str, relation: Relation | None = None) -> Self:
        """Read a folder that `save` wrote for a data set and check all of it.

        With the relation of the data set, its true pairs are left out of the lists, see
        `HardNegativeLists.checked`.

        Raises:
            ValueError: no store, damaged, of another data set or of a newer version.
        """
        stored = MINED.open(folder, fingerprint=fingerprint)
        m = stored.manifest
        texts = _rows(stored, "texts.npy", (m.image_count, m.texts_per_image), m.text_count)
        images = _rows(stored, "images.npy", (m.text_count, m.images_per_text), m.image_count)
        lists = HardNegativeLists(texts, images)
        if m.scored:
            text_scores = _scores(stored, "text_scores.npy", texts)
            image_scores = _scores(stored, "image_scores.npy", images)
            true_scores = _true_scores(stored)
            lists = HardNegativeLists(texts, images, text_scores, image_scores, true_scores)
        try:
            lists.check_order()
            lists = lists if relation is None else lists.checked(relation)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
        return cls(m, lists)


def _rows(
    stored: Artifact[NegativeManifest], name: str, shape: tuple[int, int], limit: int
) -> Tensor:
    array = stored.array(name, shape=shape, dtype=np.int32, content="a list of mined rows")
    rows, path = torch.from_numpy(np.array(array)), stored.folder / name
    if rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < limit:
        raise ValueError(
            f"{path} holds rows {int(rows.min())} to {int(rows.max())}, but rows go from "
            f"0 to {limit - 1}, and -1 for none; {MINED.remedy}"
        )
    if bool(((rows[:, :-1] < 0) & (rows[:, 1:] >= 0)).any()):
        raise ValueError(f"{path} has lists with a hole: a row after -1; {MINED.remedy}")
    return rows


def _scores(stored: Artifact[NegativeManifest], name: str, rows: Tensor) -> Tensor:
    shape = tuple(rows.shape)
    array = stored.array(name, shape=shape, dtype=np.float16, content="scores of mined rows")
    return torch.from_numpy(np.array(array))


def _true_scores(stored: Artifact[NegativeManifest]) -> Tensor | None:
    """(T,) scores of true pairs; None where they were not stored."""
    name, shape = "true_scores.npy", (stored.manifest.text_count,)
    if name not in (stored.files or {}):
        return None
    array = stored.array(name, shape=shape, dtype=np.float16, content="scores of true pairs")
    scores = torch.from_numpy(np.array(array))
    if bool(scores.isnan().any()):
        raise ValueError(f"{stored.folder / name} holds scores that are no numbers; {MINED.remedy}")
    return scores
