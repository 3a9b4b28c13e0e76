"""Captions as open_clip reads them."""

from __future__ import annotations

import hashlib
import html
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast, final

from counterfoil.core.literals import parse_literal
from counterfoil.corpus.words import Pieces, Reading, Tokenizer
from counterfoil.files import read_json, write_json

PREFIX = "open_clip:"
KIND = "open_clip"
FOLDER = "local-dir:"
Clean = Literal["lower", "whitespace", "canonicalize"]
_END = "</w>"  # of a word, in CLIP's own vocabulary


@final
class ClipWords(Tokenizer):
    """Cleaned captions in the pieces of CLIP's own vocabulary, or of a Hugging Face tokenizer.

    Args:
        clean: what is done first: mojibake and HTML are mended and blanks put in order; "lower"
            also takes capitals away, "canonicalize" capitals and punctuation.
        longest: captions are cut to this many pieces.
        pieces: a Hugging Face tokenizer; None for CLIP's own vocabulary.
        ends: what that tokenizer sets behind a caption is kept; else it becomes id 0.

    Raises:
        ValueError: open_clip is not installed, or there is no such cleaning.
    """

    divides = True

    def __init__(
        self,
        *,
        clean: Clean,
        longest: int = 77,
        pieces: Pieces | None = None,
        ends: bool = True,
    ) -> None:
        parse_literal(Clean, clean, "a cleaning of open_clip")
        self.clean, self.longest, self.pieces, self.ends = clean, longest, pieces, ends
        if pieces:
            self.size, self.pad, self.wordless = pieces.size, pieces.pad, pieces.wordless
            self.divides = pieces.divides
        else:
            self._own = _library().SimpleTokenizer(context_length=longest, clean=clean)
            self.size = int(self._own.vocab_size)
            self.wordless = tuple(self._own.all_special_ids)

    def read(self, texts: Sequence[str]) -> Reading:
        if self.pieces:
            found = self.pieces.read([self._cleaned(text) for text in texts])
            last = None if self.ends else self.pieces.pretrained.sep_token_id
            ids = [[0 if i == last else i for i in row] for row in found.ids]
            return Reading(ids, found.words)
        start, stop = self._own.sot_token_id, self._own.eot_token_id
        cut = [self._own.encode(text)[: self.longest - 2] for text in texts]
        return Reading([[start, *row, stop] for row in cut], [self._words(row) for row in cut])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.read(texts).ids

    def tokens(self, ids: Sequence[int]) -> list[str]:
        if self.pieces:
            return self.pieces.tokens(ids)
        return [self._own.decoder[i] for i in ids]

    def save(self, folder: Path) -> None:
        if self.pieces:
            self.pieces.save(folder)
        plain = {"clean": self.clean, "longest": self.longest, "ends": self.ends}
        note = {"kind": KIND, **plain, "pieces": self.pieces is not None}
        write_json(folder / "tokenizer.json", note)

    @property
    def digest(self) -> str:
        inner = self.pieces.digest if self.pieces else "own"
        text = f"{KIND} {self.clean} {self.longest} {self.ends} {inner}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _words(self, row: Sequence[int]) -> list[int]:
        word, found = 0, [-1]
        for piece in self.tokens(row):
            found.append(word)
            word += piece.endswith(_END)
        return [*found, -1]

    def _cleaned(self, text: str) -> str:
        import ftfy

        text = html.unescape(html.unescape(ftfy.fix_text(text)))
        if self.clean == "canonicalize":
            text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation))
        text = " ".join(text.split())
        return text if self.clean == "whitespace" else text.lower()


def clip_words(name: str) -> ClipWords:
    """The tokenizer of a model of open_clip.

    Args:
        name: ``open_clip:`` and an architecture, ``hf-hub:USER/MODEL`` or ``local-dir:FOLDER``.

    Raises:
        ValueError: open_clip is not installed, there is no such model, or it reads captions in a
            way that is not known here.
    """
    where = name.removeprefix(PREFIX)
    try:
        found = _library().get_model_config(where)
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} has no configuration of open_clip: {error}") from error
    if found is None:
        raise ValueError(f"{name!r} is no model of open_clip")
    text: dict[str, Any] = found["text_cfg"]
    public = text.get("hf_tokenizer_name")
    said = dict(text.get("tokenizer_kwargs") or {})
    clean = said.pop("clean", "whitespace" if public else "lower")
    ends = not said.pop("strip_sep_token", False)
    longest = int(text.get("context_length", 77))
    if more := [*said, *(["tokenizer_mode"] if text.get("tokenizer_mode") else [])]:
        raise ValueError(f"{name} reads captions with {more[0]}, which is not known here")
    if public and where.startswith(FOLDER):
        public = where.removeprefix(FOLDER)
    pieces = Pieces(public, longest=longest) if public else None
    return ClipWords(clean=cast("Clean", clean), longest=longest, pieces=pieces, ends=ends)


def open_clip_words(folder: Path) -> ClipWords:
    """The tokenizer that `ClipWords.save` wrote.

    Raises:
        ValueError: there is none, or open_clip is not installed.
    """
    match read_json(folder / "tokenizer.json", "a tokenizer"):
        case {
            "kind": "open_clip",
            "clean": str(clean),
            "longest": int(longest),
            "ends": bool(ends),
            "pieces": bool(public),
        }:
            pieces = Pieces(str(folder / "pieces"), longest=longest) if public else None
            return ClipWords(clean=cast("Clean", clean), longest=longest, pieces=pieces, ends=ends)
    raise ValueError(f"{folder / 'tokenizer.json'} is not a tokenizer that counterfoil wrote")


def _library() -> Any:
    try:
        import open_clip
    except ImportError:
        raise ValueError(
            'captions of an open_clip model need open_clip: pip install "counterfoil[vision]"'
        ) from None
    return open_clip
