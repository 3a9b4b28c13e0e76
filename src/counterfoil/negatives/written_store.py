"""Written captions on disk, with the evidence of where they came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, final

from pydantic import TypeAdapter, ValidationError

from counterfoil import __version__
from counterfoil.core.artifact import ArtifactFormat, ArtifactManifest
from counterfoil.corpus.corpus import Corpus
from counterfoil.files import check_new

ROWS = "foils.jsonl"


@final
@dataclass(frozen=True, slots=True)
class Changed:
    """Words of a caption that its foil does not have.

    Attributes:
        old: the caption's.
        new: the foil's.
        start: first character of the new ones in the foil.
        stop: the one after their last.
    """

    old: str
    new: str
    start: int
    stop: int


@final
@dataclass(frozen=True, slots=True)
class WrittenFoil:
    """One written caption.

    Attributes:
        image: the data set's name of the image that it is not true of.
        text: the data set's name of the caption that it was made of.
        caption: that caption.
        foil: what was made of it.
        kind: what was changed, as in "noun".
        changed: the changed words, from left to right.
        scores: what models thought of it, by the name of the score.
        writer: who wrote it.
    """

    image: str
    text: str
    caption: str
    foil: str
    kind: str
    changed: tuple[Changed, ...]
    scores: Mapping[str, float] = field(default_factory=dict)
    writer: str = "rules"

    def line(self) -> str:
        """The line of a file that holds it."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


@final
class WrittenManifest(ArtifactManifest):
    """What captions were written for, so that they are never read against anything else.

    Attributes:
        corpus: fingerprint of the images and captions.
        split: whose captions they are, as in "train".
        writer: who wrote, in words.
        settings: of the writer.
        seed: of what was drawn.
        counts: foils by kind.
    """

    corpus: str
    split: str
    writer: str
    settings: dict[str, str | int | float | bool | tuple[str, ...] | None]
    seed: int
    counts: dict[str, int]


WRITTEN = ArtifactFormat(
    name="written captions",
    manifest=WrittenManifest,
    remedy="write again with `counterfoil write`",
    origin="was written for",
)


@final
@dataclass(frozen=True, slots=True)
class WrittenStore:
    """A folder of written captions: ``manifest.json``, and ``foils.jsonl`` with one a line.

    Attributes:
        folder: where it lies.
        manifest: what it was made from.
    """

    folder: Path
    manifest: WrittenManifest

    @classmethod
    def write(
        cls,
        folder: Path,
        foils: Iterable[WrittenFoil],
        corpus: Corpus,
        *,
        writer: str,
        settings: Mapping[str, Any],
        seed: int,
    ) -> Self:
        """Write the folder, whole or not at all, while the foils are being made.

        Args:
            folder: must not exist yet.
            foils: of captions of the corpus.
            corpus: the split that they were written for.
            writer: who wrote, in words.
            settings: of the writer; plain values.
            seed: of what was drawn.

        Raises:
            ValueError: something is there.
        """
        check_new(folder)
        counts: dict[str, int] = {}
        with WRITTEN.writing(folder) as temporary:
            with (temporary / ROWS).open("w", encoding="utf-8") as file:
                for foil in foils:
                    counts[foil.kind] = counts.get(foil.kind, 0) + 1
                    file.write(foil.line())
            manifest = WrittenManifest(
                corpus=corpus.fingerprint,
                split=corpus.part,
                writer=writer,
                settings=dict(settings),
                seed=seed,
                counts=counts,
                version=__version__,
            )
            WRITTEN.write_manifest(temporary, manifest)
        return cls(folder, manifest)

    @classmethod
    def open(cls, folder: Path, *, fingerprint: str) -> Self:
        """A folder that `write` wrote for a corpus.

        Raises:
            ValueError: no such folder, damaged, for another corpus or of a newer version.
        """
        return cls(folder, WRITTEN.read_manifest(folder, fingerprint=fingerprint))

    def __len__(self) -> int:
        return sum(self.manifest.counts.values())

    def foils(self) -> Iterator[WrittenFoil]:
        """All of them, in the order in which they were written.

        Raises:
            ValueError: a line is damaged, or there are not as many as the manifest promises.
        """
        path, count = self.folder / ROWS, 0
        for foil in read_foils(path):
            count += 1
            yield foil
        if count != len(self):
            raise ValueError(
                f"{path} holds {count:,} captions, but its manifest promises {len(self):,}; write "
                "again"
            )


def foils_digest(folder: Path) -> str:
    """Sixteen hex digits of the captions in a folder; "" where there are none."""
    path = folder / ROWS
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def read_foils(path: Path) -> Iterator[WrittenFoil]:
    """The foils of a file with one a line.

    Raises:
        ValueError: there is no such file, or a line is damaged.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; written captions are needed there")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            yield _row(path, number, line)


_ROW = TypeAdapter(WrittenFoil)


def _row(path: Path, number: int, line: str) -> WrittenFoil:
    try:
        return _ROW.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ValueError(
            f"{path}, line {number} is damaged: {where}: {first['msg'].lower()}; write again"
        ) from None
