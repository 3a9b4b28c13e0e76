"""A reader: ``NAME.pairs`` beside pictures; on each line a file, a tab and a caption."""

from __future__ import annotations

from counterfoil.core.io import read_text_lines
from counterfoil.data.dataset import DatasetEntry, ImageTextDataset, build_dataset
from counterfoil.data.files import find_pictures
from counterfoil.data.images import PictureFiles
from counterfoil.data.readers.source import Format, Source


def read_pairs(source: Source) -> ImageTextDataset:
    """Read a file of pairs, or those of a folder."""
    given = source.path
    files = [given] if given.is_file() else sorted(given.glob("*.pairs"))
    captions: dict[str, list[str]] = {}
    for file in files:
        for number, line in enumerate(read_text_lines(file, "pairs"), 1):
            name, _, caption = line.partition("\t")
            if line and not caption:
                raise ValueError(
                    f"{file}, line {number}: {line!r:.60} is no picture, tab and caption; mend it"
                )
            if line:
                captions.setdefault(name, []).append(caption)
    return build_dataset(
        source.name or source.title,
        [DatasetEntry(name, "", tuple(texts)) for name, texts in captions.items()],
        where=str(given),
        # the files of the folder, or of the one that `images=` names
        pictures=PictureFiles(find_pictures(list(captions), source.pictures, where=str(given))),
    )


FORMAT = Format("pairs (NAME.pairs)", matches=lambda source: True, read=read_pairs)
