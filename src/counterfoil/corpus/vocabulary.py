"""The vocabularies that VSE++, SCAN, BFAN, VSRN and AOQ ship with their checkpoints.

JSON with "word2idx", "idx2word" and "idx", or the pickle of an object of a class named Vocabulary
with these attributes, often written by Python 2. Ids are kept exactly.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from counterfoil.corpus.words import Words
from counterfoil.files import read_json

MODULES = ("vocab", "__main__", "Vocabulary", "data.vocab", "lib.vocab")


@final
class Vocabulary:
    """Stands in for the authors' class; holds attributes and does nothing."""


@final
class _OnlyVocabularies(pickle.Unpickler):
    """Constructs `Vocabulary` and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "Vocabulary" and module in MODULES:
            return Vocabulary
        if (module, name) in (("copy_reg", "_reconstructor"), ("copyreg", "_reconstructor")):
            return _reconstruct
        if (module, name) in (("__builtin__", "object"), ("builtins", "object")):
            return object
        raise ValueError(
            f"it holds {module}.{name}; only a Vocabulary of words and numbers is read"
        )


def _reconstruct(kind: Any, parent: Any, state: Any) -> Vocabulary:
    """What Python 2's pickles of new-style classes call, for this one class."""
    if kind is not Vocabulary or parent is not object or state is not None:
        raise ValueError("it holds something else than a Vocabulary")
    return Vocabulary()


def read_vocabulary(path: Path, *, longest: int = 60) -> Words:
    """An authors' vocabulary, JSON or pickle, with its ids unchanged.

    Args:
        path: the file.
        longest: captions are cut to this many words.

    Raises:
        ValueError: it is no such file, it holds another object, or ids are missing or shared.
    """
    ids = _pickled(path) if path.suffix in (".pkl", ".pickle") else _listed(path)
    words: list[str | None] = [None] * len(ids)
    for word, place in ids.items():
        if not isinstance(word, str) or type(place) is not int:
            raise ValueError(f"{path}: {word!r}: {place!r} is not a word with its id")
        if not 0 <= place < len(words) or words[place] is not None:
            raise ValueError(
                f"{path}: word {word!r} has id {place}; {len(words):,} words need the ids 0 to "
                f"{len(words) - 1:,}, each once"
            )
        words[place] = word
    try:
        return Words([str(word) for word in words], longest=longest)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _listed(path: Path) -> Mapping[Any, Any]:
    plain = read_json(path, "a vocabulary")
    if not isinstance(plain, dict) or not isinstance(plain.get("word2idx"), dict):
        raise ValueError(f'{path} is not a vocabulary: {{"word2idx": {{...}}}} is needed')
    ids: dict[Any, Any] = plain["word2idx"]
    return ids


def _pickled(path: Path) -> Mapping[Any, Any]:
    try:
        with path.open("rb") as file:
            found = _OnlyVocabularies(file, encoding="latin1").load()
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; a vocabulary is needed there") from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(f"{path} cannot be read as a vocabulary: {error}") from error
    ids = getattr(found, "word2idx", None) if isinstance(found, Vocabulary) else None
    if not isinstance(ids, dict):
        raise ValueError(f"{path} is not a Vocabulary with word2idx")
    return ids
