"""Token files of Flickr8k and Flickr30k: ``NAME.jpg#0``, a tab or blanks, and a caption a line.

The lists of splits of Flickr8k, ``Flickr_8k.trainImages.txt`` and so on, are read beside them.
Nothing is quoted.
"""

from __future__ import annotations

import re
from pathlib import Path

from counterfoil.data.images import ENDINGS
from counterfoil.data.readers.annotations import (
    NO_CAPTION,
    Annotation,
    Annotations,
    annotation_format,
)
from counterfoil.data.readers.source import Source, lines_of, read_any_text

_ENDINGS = "|".join(map(re.escape, ENDINGS))
# translations put the language between: NAME.jpg#zh#0
_LINE = re.compile(
    rf"(?P<picture>[^\t#]+?(?:{_ENDINGS})(?:\.\d+)?)(?:#\w+)?#\d+[\t ](?P<text>.*)", re.I
)
_DAMAGED = re.compile(rf".*(?:{_ENDINGS})\.\d+", re.I)  # as 2258277193_586949ec62.jpg.1 of Flickr8k
_STRANGE = "names that are no picture's"
_LINES = "lines without a picture's name and a number"
_PROBES = 5  # lines that are looked at


def is_tokens(source: Source, file: Path) -> bool:
    """Return True for a file whose first lines are such."""
    if file.suffix.lower() in (".json", ".jsonl", ".parquet"):
        return False
    lines = [line for line in lines_of(source.head(file)) if line.strip()][:_PROBES]
    return bool(lines) and all(map(_LINE.fullmatch, lines[:-1] or lines))


def read_tokens(source: Source, file: Path) -> Annotations:
    """Read a file; lines that do not fit are left out with a warning."""
    result = Annotations(pictures_needed=False)
    known = {path.name.lower() for path in source.pictures.pictures}
    for number, line in enumerate(lines_of(read_any_text(file, code_page=True)), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            if line.strip():
                result.leave_out(_LINES, f"line {number}")
            continue
        picture, text = match["picture"].strip(), match["text"].strip("\t")
        if _DAMAGED.fullmatch(picture) and picture.lower() not in known:
            result.leave_out(_STRANGE, picture)
        elif not text.strip():
            result.leave_out(NO_CAPTION, picture)
            result.rows.append(Annotation(picture, [], f"{file}, line {number}"))
        else:
            result.rows.append(Annotation(picture, [text], f"{file}, line {number}"))
    return result


def _without_lemmas(source: Source, file: Path) -> bool:
    """Return True for a token file but that of lemmas, unless that is given itself."""
    return is_tokens(source, file) and (file == source.path or "lemma" not in file.name.lower())


TOKENS = annotation_format("a token file of Flickr8k or Flickr30k", _without_lemmas, read_tokens)
