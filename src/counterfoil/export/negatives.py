"""Negatives out of their store into a folder of another tool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from counterfoil.core.artifact import MANIFEST
from counterfoil.core.literals import parse_choice
from counterfoil.corpus.corpus import Corpus
from counterfoil.export.formats import FORMATS
from counterfoil.export.groups import Mined, Negatives, Written
from counterfoil.export.pictures import Places
from counterfoil.files import check_folder, check_new, read_json, replacing_folder
from counterfoil.negatives.store import NegativeStore
from counterfoil.negatives.written_store import WrittenStore

Kind = Literal["mined", "written"]
Place = Callable[[int], str]


def kind_of(store: Path) -> Kind | None:
    """What kind of negatives lie in a folder; None for none.

    Raises:
        ValueError: there is a manifest, and it cannot be read.
    """
    if not (store / MANIFEST).is_file():
        return None
    plain = read_json(store / MANIFEST, "a manifest")
    known = plain if isinstance(plain, dict) else {}
    if "texts_per_image" in known:
        return "mined"
    return "written" if "writer" in known else None


def check_export(store: Path, to: str, folder: Path) -> None:
    """Refuse what cannot be exported, before the data are read.

    Raises:
        ValueError: no such format, something is there, or there are no negatives.
    """
    if kind_of(store) is None:
        raise ValueError(
            f"{store} holds no negatives; give what `counterfoil mine` or `counterfoil write` made"
        )
    parse_choice(FORMATS, to, "a form of negatives")
    check_new(folder)
    check_folder(folder)


def export_negatives(store: Path, to: str, folder: Path, corpus: Corpus, *, most: int) -> list[str]:
    """Write negatives as another tool reads them, whole or not at all.

    Args:
        store: of mined or written negatives.
        to: whose files, see `FORMATS`.
        folder: where they go; must not exist yet.
        corpus: the split that they were made for.
        most: negatives of a query, at most.

    Returns:
        What was written, in words.

    Raises:
        ValueError: no such format, something is there, or no negatives of these data.
    """
    check_export(store, to, folder)
    opened = _opened(store, corpus)
    with replacing_folder(folder) as temporary:
        named = to == "trec"  # by the data set, where pictures would be drawn for nothing
        place = corpus.image_ids.__getitem__ if named else Places(corpus, temporary, folder)
        negatives = opened(place, most)
        said = FORMATS[to](negatives, temporary)
        (temporary / "README.md").write_text(_card(negatives, temporary), encoding="utf-8")
    if corpus.pictures is None and not named:
        said.append(f"{corpus.name} has no pictures; images are given by their names")
    return said


def _opened(store: Path, corpus: Corpus) -> Callable[[Place, int], Negatives]:
    if kind_of(store) == "written":
        written = WrittenStore.open(store, fingerprint=corpus.fingerprint)
        return lambda places, most: Written(corpus, written, places, most)
    mined = NegativeStore.open(store, fingerprint=corpus.fingerprint)
    return lambda places, most: Mined(corpus, mined, places, most)


def _card(negatives: Negatives, folder: Path) -> str:
    """What the folder holds, in the form that `datasets.load_dataset` reads."""
    files = sorted(path.name for path in folder.glob("*.jsonl"))
    configs = "".join(
        f"- config_name: {name.removesuffix('.jsonl')}\n  data_files: {name}\n" for name in files
    )
    head = f"---\nconfigs:\n{configs}---\n\n" if files else ""
    return f"{head}{negatives.about}\n"
