"""Mined negatives from and for the released code of AOQ."""

from __future__ import annotations

import re
from pathlib import Path

from counterfoil.core.console import output
from counterfoil.files import check_folder, check_new
from counterfoil.negatives.aoq import READ, names, paths, read_aoq, write_aoq
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.store import NegativeStore
from counterfoil.recipes.run import Source


def import_lists(folder: Path, source: Source, split: str, out: Path, *, name: str | None) -> None:
    """Write the lists of AOQ's mining scripts as a store of mined negatives.

    Args:
        folder: where both files are.
        source: the data they were mined from.
        split: the split they were mined from.
        out: folder of the store.
        name: what follows the underscore in the names of the files; None for the only one there.

    Raises:
        ValueError: `out` exists, no or several pairs of files, or they are not of these data.
    """
    check_new(out, "a new folder with --out")
    check_folder(out)
    name = name or _only(folder)
    corpus = source.split(split)
    lists = read_aoq(folder, name, corpus.relation)
    NegativeStore.of(lists, corpus=corpus.fingerprint, split=split, sources=()).save(out)
    output(f"{lists.in_words()}, from {folder}: {out}")


def export_lists(
    store: Path,
    source: Source,
    split: str,
    out: Path,
    *,
    name: str | None,
    texts: int,
    images: int,
) -> None:
    """Write mined negatives in the files that AOQ's code reads.

    Args:
        store: folder of the store.
        source: the data it was mined from.
        split: the split it was mined from.
        out: where both files go.
        name: what follows the underscore in their names; None for what the data are called.
        texts: longest list of an image.
        images: longest list of a text.

    Raises:
        ValueError: one of the files exists, no store of these data, or lists that the files
            cannot hold.
    """
    corpus = source.split(split)
    name = corpus.name if name is None else name
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"{name!r} cannot be part of a file's name; give another with --name")
    for path in paths(out, name):
        check_new(path, "another folder with --out")
    check_folder(out)
    mined = NegativeStore.open(store, fingerprint=corpus.fingerprint).lists
    lists = Lists(mined.texts[:, :texts].contiguous(), mined.images[:, :images].contiguous())
    write_aoq(lists, out, name, corpus.relation)
    output(f"{lists.in_words()}: {', '.join(str(path) for path in paths(out, name))}")
    if lists.texts.shape[1] < READ[0] or lists.images.shape[1] < READ[1]:
        output(f"AOQ's code reads {READ[0]} texts and {READ[1]} images unless told otherwise")


def _only(folder: Path) -> str:
    found = names(folder)
    if len(found) != 1:
        what = f"those of {', '.join(found)}; say which with --name" if found else "neither"
        raise ValueError(
            f"{folder} should hold one pair of files i2t_NAME.npy and t2i_NAME.npy, "
            f"but holds {what}"
        )
    return found[0]
