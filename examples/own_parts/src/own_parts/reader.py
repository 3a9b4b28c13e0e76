"""A reader: ``NAME.pairs`` beside pictures; on each line a file, a tab and a caption."""

from __future__ import annotations

from counterfoil.core.io import read_text_lines
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.files import find_pictures
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.source import Format, Source


def read_pairs(source: Source) -> ImageTextDataset:
    """Read the pairs of a folder."""
    file = next(source.path.glob("*.pairs"))
    captions: dict[str, list[str]] = {}
    for line in read_text_lines(file, "pairs"):
        name, _, caption = line.partition("\t")
        captions.setdefault(name, []).append(caption)
    paths = find_pictures(list(captions), source.listing, where=str(file))
    return build_dataset(
        source.name or source.path.name,
        [DatasetEntry(name, "", tuple(texts)) for name, texts in captions.items()],
        where=str(file),
        pictures=PictureFiles(paths),
    )


FORMAT = Format("pairs (NAME.pairs)", lambda source: source.path.is_dir(), read_pairs)
