from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from counterfoil.data.dataset import Relation
from counterfoil.negatives.aoq_format import read_aoq, write_aoq
from counterfoil.negatives.store import HardNegativeLists
from negatives_cases import ragged, random_lists

FIVE = Relation(torch.arange(20) // 5, images=4)


def test_lists_come_back_from_aoqs_files(tmp_path: Path) -> None:
    lists = random_lists(FIVE, 10, 3)
    write_aoq(lists, tmp_path, "f30k", FIVE)
    on_disk = np.load(tmp_path / "i2t_f30k.npy"), np.load(tmp_path / "t2i_f30k.npy")
    assert [a.dtype for a in on_disk] == [np.int32, np.int32]
    assert [a.shape for a in on_disk] == [(4, 10), (20, 3)]
    again = read_aoq(tmp_path, "f30k", FIVE)
    assert torch.equal(again.texts, lists.texts)
    assert torch.equal(again.images, lists.images)
    assert again.text_scores is None


def test_other_corpora_have_no_such_files(tmp_path: Path) -> None:
    relation = ragged()
    with pytest.raises(ValueError, match=r"captions 5i to 5i\+4"):
        write_aoq(random_lists(relation, 3, 3), tmp_path, "coco", relation)
    with pytest.raises(ValueError, match=r"captions 5i to 5i\+4"):
        read_aoq(tmp_path, "coco", relation)
    assert not list(tmp_path.iterdir())


def test_short_lists_cannot_be_written(tmp_path: Path) -> None:
    lists = random_lists(FIVE, 10, 3)
    lists.images[2, 2] = -1
    with pytest.raises(ValueError, match="1 lists are shorter"):
        write_aoq(lists, tmp_path, "f30k", FIVE)
    assert not list(tmp_path.iterdir())


def edited(texts: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        np.save(folder / "i2t_f30k.npy", texts(np.load(folder / "i2t_f30k.npy")))

    return apply


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "t2i_f30k.npy").unlink(), "t2i_f30k.npy does not exist"),
        (edited(lambda a: a[:3]), r"int32 of shape \(3, 10\); whole numbers of shape \(4, any\)"),
        (edited(lambda a: a[0]), r"int32 of shape \(10,\)"),
        (edited(lambda a: a[:, :0]), r"int32 of shape \(4, 0\)"),
        (edited(lambda a: a.astype(np.float32)), "holds float32"),
        (edited(lambda a: a - 1), "holds rows -1 to|hold .* pairs that are true"),
        (edited(lambda a: a + 99), "in this corpus they go from 0 to 19"),
        (edited(lambda a: np.arange(40).reshape(4, 10) % 20), "pairs that are true in this corpus"),
    ],
)
def test_files_of_something_else_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    write_aoq(random_lists(FIVE, 10, 3), tmp_path, "f30k", FIVE)
    damage(tmp_path)
    with pytest.raises(ValueError, match=words):
        read_aoq(tmp_path, "f30k", FIVE)


def test_wide_integers_are_read(tmp_path: Path) -> None:
    lists: HardNegativeLists = random_lists(FIVE, 10, 3)
    write_aoq(lists, tmp_path, "f30k", FIVE)
    edited(lambda a: a.astype(np.int64))(tmp_path)
    assert torch.equal(read_aoq(tmp_path, "f30k", FIVE).texts, lists.texts)
