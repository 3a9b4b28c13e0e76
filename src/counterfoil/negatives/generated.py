"""Generated captions on disk, with their provenance, and the sampler that trains on them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, final, runtime_checkable

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from counterfoil import __version__
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.core.io import ensure_absent
from counterfoil.core.types import (
    Batch,
    Embeddings,
    EncodedViews,
    ModalityBatch,
    Needs,
    Pairs,
    Role,
)
from counterfoil.data.dataset import ImageTextDataset, images_saying, plain_caption
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import check_positive
from counterfoil.negatives.sources import MinedExtras, NegativeSource, PlannedTraining
from counterfoil.scoring.encode import (
    evaluation_mode,
    gather_parts,
    gather_shards,
    shard_index,
)

_WORD = re.compile(r"\w+(?:[-']\w+)*")


def normalise_for_comparison(text: str) -> str:
    """Return a caption's words in lower case, without punctuation marks.

    >>> normalise_for_comparison("A man's  T-shirt.")
    "a man's t-shirt"
    """
    return " ".join(_WORD.findall(text.lower()))


def named_generator(name: str) -> torch.Generator:
    """Return a random state that depends on a name only."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    return torch.Generator().manual_seed(digest)


ROWS = "foils.jsonl"


@final
@dataclass(frozen=True, slots=True)
class ChangedSpan:
    """Words of a caption and those that replace them in its foil.

    Attributes:
        old: words of the caption.
        new: words of the foil.
        start: first character of the new words in the foil.
        stop: the character after their last.
    """

    old: str
    new: str
    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True)
class GeneratedCaption:
    """One generated caption with the caption that it was made from.

    Attributes:
        image: id of the image that it does not describe.
        text: id of the original caption.
        caption: the original caption.
        foil: the generated caption.
        kind: kind of the changed words, as in "noun".
        changed: the changed words, from left to right.
        scores: scores by models, by name.
        writer: name of the generator.
    """

    image: str
    text: str
    caption: str
    foil: str
    kind: str
    changed: tuple[ChangedSpan, ...]
    scores: Mapping[str, float] = field(default_factory=dict)
    writer: str = "rules"

    def line(self) -> str:
        """Return it as a line of a JSON-lines file."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


_FOIL = TypeAdapter(GeneratedCaption)


@final
class GeneratedManifest(ArtifactManifest):
    """Provenance of generated captions, so that they are never read for other data.

    Attributes:
        corpus: fingerprint of the images and captions.
        split: split of the captions, as in "train".
        writer: description of the generator.
        settings: of the generator.
        seed: of random choices.
        counts: number of foils by kind.
    """

    corpus: str
    split: str
    writer: str
    settings: dict[str, str | int | float | bool | tuple[str, ...] | None]
    seed: int
    counts: dict[str, int]


GENERATED = ArtifactFormat(
    name="written captions",
    manifest=GeneratedManifest,
    remedy="write again with `counterfoil papers write`",
    origin="was written for",
)


@final
@dataclass(frozen=True, slots=True)
class GeneratedStore:
    """A folder of generated captions: ``manifest.json``, and ``foils.jsonl`` with one a line."""

    folder: Path
    manifest: GeneratedManifest

    @classmethod
    def write(
        cls,
        folder: Path,
        foils: Iterable[GeneratedCaption],
        dataset: ImageTextDataset,
        *,
        writer: str,
        settings: Mapping[str, Any],
        seed: int,
    ) -> Self:
        """Write the new folder, whole or not at all, while the foils are being generated.

        The manifest describes the data set, the `writer` and its plain `settings`.

        Raises:
            ValueError: the folder exists.
        """
        ensure_absent(folder)
        counts: dict[str, int] = {}
        with GENERATED.writing(folder) as temporary:
            with (temporary / ROWS).open("w", encoding="utf-8") as file:
                for foil in foils:
                    counts[foil.kind] = counts.get(foil.kind, 0) + 1
                    file.write(foil.line())
            manifest = GeneratedManifest(
                corpus=dataset.fingerprint,
                split=dataset.split_name,
                writer=writer,
                settings=dict(settings),
                seed=seed,
                counts=counts,
                version=__version__,
            )
            GENERATED.write_manifest(temporary, manifest, [ROWS])
        return cls(folder, manifest)

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """Open a folder that `write` wrote for a data set.

        Raises:
            ValueError: no such folder, damaged, for another data set or of a newer version.
        """
        stored = GENERATED.open(folder, fingerprint=fingerprint)
        stored.check(ROWS)
        return cls(folder, stored.manifest)

    def __len__(self) -> int:
        return sum(self.manifest.counts.values())

    def foils(self) -> Iterator[GeneratedCaption]:
        """Yield the captions, in the order of the file.

        Raises:
            ValueError: a line is damaged, or there are not as many as the manifest promises.
        """
        path, count = self.folder / ROWS, 0
        for foil in read_generated(path):
            count += 1
            yield foil
        if count != len(self):
            raise ValueError(
                f"{path} holds {count:,} captions, but its manifest promises {len(self):,}; write "
                "again"
            )


def generated_digest(folder: Path) -> str:
    """Return sixteen hex digits, the hash of the captions in a folder; "" where there are none."""
    path = folder / ROWS
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def read_generated(path: Path) -> Iterator[GeneratedCaption]:
    """Yield the captions of a file with one a line.

    Raises:
        ValueError: there is no such file, or a line is damaged.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; generated captions are needed there")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield _FOIL.validate_json(line)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"]) or "the whole"
                raise ValueError(
                    f"{path}, line {number} is damaged: {where}: {first['msg'].lower()}; write "
                    "again"
                ) from None


@runtime_checkable
class PlannedCaptions(Protocol):
    """Captions that a stage will write, of those of a split."""

    @property
    def name(self) -> str:
        """Name of the stage."""

    @property
    def source_split(self) -> str:
        """The split whose captions are changed."""


@final
class GeneratedCaptions(NegativeSource):
    """Draws stored foils of each anchor caption, which the model in training reads as text.

    VSE-C (https://arxiv.org/abs/1806.10348) trains on foils made by rules, TAGS with "static"
    negatives on those of a frozen model. Each visit of an anchor draws anew, without replacement.
    Roles: "written".

    VSE-C trains each image on one foil, the hardest of the batch's pool, which ``shared=True`` and
    ``hardest=True`` draw with 5 foils of each caption: the model scores the pool without a graph,
    and encodes the chosen foils again for training.
    """

    gives = Needs(roles=frozenset({Role.WRITTEN}))
    anchors_only = True
    seed_name = "propose"
    takes: ClassVar[Mapping[str, str]] = {"folder": "write"}

    def __init__(
        self,
        *,
        folder: str | Path,
        count: int = 5,
        kinds: tuple[str, ...] = (),
        shared: bool = False,
        hardest: bool = False,
    ) -> None:
        """Name the captions; `check` reads them.

        Args:
            folder: of generated captions, as ``counterfoil papers write`` makes it.
            count: N, foils of each anchor; fewer where fewer are stored.
            kinds: kinds of foils to use, as in ("noun", "numeral"); () for all.
            shared: score every anchor's image with the foils of all anchors, as NegCLIP
                (https://arxiv.org/abs/2210.01936) appends them to the texts of a batch.
            hardest: of an anchor's foils, keep the one that the model scores highest with its
                image; of equal scores the first.

        Raises:
            ValueError: a count below 1.
        """
        check_positive(count=count)
        self.folder, self.count, self.kinds = folder, count, kinds
        self.shared, self.hardest = shared, hardest
        self.processor: ProcessedDataset | None = None  # inputs of the model in training
        self._foils: dict[int, list[str]] = {}
        self._true: Mapping[str, Collection[int]] = {}

    def check_plan(self, training: PlannedTraining) -> None:
        """Check the captions, or the split of those that will be written.

        Raises:
            ValueError: captions of another split or data set, or none.
        """
        given: object = self.folder
        if not isinstance(given, PlannedCaptions):
            GeneratedStore.open(Path(self.folder), fingerprint=training.data.fingerprint)
        elif given.source_split != "train":
            raise ValueError(
                f"it trains on captions of the split 'train', and {given.name!r} writes those of "
                f"{given.source_split!r}; set {given.name}.split=train"
            )

    def check(self, model: RetrievalModel, data: ImageTextDataset) -> None:
        """Read the captions.

        Raises:
            ValueError: no such folder, damaged or of another data set, or no foil is left to draw.
        """
        folder, kinds = self.folder, self.kinds
        store = GeneratedStore.open(Path(folder), fingerprint=data.fingerprint)
        dataset, written = data, list(store.foils())
        rows = {name: row for row, name in enumerate(dataset.text_ids)}
        owners = dataset.text_to_image.tolist()
        self._foils = {}
        self._true = images_saying(dataset, (foil.foil for foil in written))
        for foil in written:
            if foil.text not in rows:
                raise ValueError(
                    f"{folder} has a foil of caption {foil.text!r}, which these data do not have; "
                    "write again"
                )
            row = rows[foil.text]
            if (not kinds or foil.kind in kinds) and not self._says(owners[row], foil.foil):
                self._foils.setdefault(row, []).append(foil.foil)
        if not self._foils:
            stored = ", ".join(store.manifest.counts) or "none"
            raise ValueError(
                f"{folder} has no foils of {', '.join(kinds) or 'any kind'}; it has: {stored}"
            )

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Keep the inputs of the model.

        Raises:
            ValueError: the model reads no words.
        """
        if data.original.processor.tokenizer is None:
            raise ValueError(
                "this model compares ready-made vectors and cannot read generated captions"
            )
        self.processor = data.original

    def describe(self) -> dict[str, Any]:
        written = generated_digest(Path(self.folder))
        return {**super().describe(), "folder": written, "kinds": self.kinds}

    def _says(self, image: int, text: str) -> bool:
        """True if a caption of the image says what a text says, which is no foil of it then."""
        return bool(self._true) and image in self._true.get(plain_caption(text), ())

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return stored foils of every anchor, the same on every process."""
        anchors = batch.anchors.image.unsqueeze(1)
        text = torch.full((len(anchors), self.count), -1)
        strings: list[str] = []
        for anchor, row in enumerate(batch.text_rows[batch.anchors.text.cpu()].tolist()):
            foils = self._foils.get(row, [])
            places = torch.randperm(len(foils), generator=rng)[: self.count].tolist()
            text[anchor, : len(places)] = torch.arange(len(strings), len(strings) + len(places))
            strings += [foils[place] for place in places]
        if self.shared and strings:
            text = text[text >= 0].expand(len(anchors), -1).clone()
            images = batch.image_rows[batch.anchors.image.cpu()].tolist()
            if self._true:
                true = [[self._says(image, string) for string in strings] for image in images]
                text.masked_fill_(torch.tensor(true), -1)
        text = text.to(anchors.device)
        assert self.processor is not None, "`begin` says which"
        process = self.processor.processor.process_texts
        texts = process(strings).to(anchors.device) if strings else None
        if self.hardest and texts is not None:
            text = _hardest_texts(model, views.inference.images.rows(anchors[:, 0]), texts, text)
            rows = text[text >= 0].unique()  # type: ignore[no-untyped-call]
            texts = texts.rows(rows)
            text = torch.searchsorted(rows, text).masked_fill(text < 0, -1)
        text = text.where(text < 0, text + len(batch.text_rows))
        pairs = Pairs(anchors.expand(text.shape), text)
        return MinedExtras(texts=texts, pairs={Role.WRITTEN: pairs})


def _hardest_texts(
    model: RetrievalModel, images: Embeddings, texts: ModalityBatch, candidates: Tensor
) -> Tensor:
    """(B, 1) the highest-scoring of the (B, N) candidates of each image; -1 for none."""
    device = candidates.device
    with evaluation_mode([model]):
        share = model.encode_texts(texts.rows(shard_index(len(texts), device)))
        pool = gather_parts(share, len(texts))
        scores = gather_shards(
            len(images), lambda rows: model.score_matrix(images.rows(rows), pool), device
        )
    none = candidates < 0
    own = scores.gather(1, candidates.clamp(min=0)).masked_fill(none, -torch.inf)
    return candidates.gather(1, own.argmax(1, keepdim=True))
