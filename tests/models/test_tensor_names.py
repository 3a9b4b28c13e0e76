from __future__ import annotations

import pytest
import torch

from counterfoil.models.checkpoints import TensorNames

NAMES = TensorNames(
    system="an OWL",
    prefixes={"img_enc.fc.": "image.fc.", "txt_enc.rnn.": "text.rnn.", "txt_enc.": "text."},
    unused=("img_enc.fc.old.",),
    needed=("image.fc.weight",),
    either=("text.fc.weight", "text.rnn.weight"),
)


def state(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((1,), float(n)) for n, name in enumerate(names)}


def test_every_tensor_under_our_name():
    theirs = state("img_enc.fc.weight", "module.txt_enc.rnn.weight", "img_enc.fc.old.weight")
    assert NAMES.renamed(theirs) == {
        "image.fc.weight": theirs["img_enc.fc.weight"],
        "text.rnn.weight": theirs["module.txt_enc.rnn.weight"],
    }


def test_the_first_beginning_that_fits_counts():
    assert NAMES.ours("txt_enc.rnn.bias") == "text.rnn.bias"
    assert NAMES.ours("txt_enc.fc.module.bias") == "text.fc.bias"
    assert NAMES.ours("img_enc.fc.old.bias") is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("img_enc.gpool.w",), r"'img_enc.gpool.w' is no tensor of an OWL checkpoint on features$"),
        (("module.img_enc.cnn.w",), r"'module.img_enc.cnn.w' is no .* it was trained on pixels: "),
        (("txt_enc.fc.weight",), r"this OWL checkpoint has no 'image.fc.weight'; is it another"),
        (("img_enc.fc.weight",), r"this OWL checkpoint has no 'text.rnn.weight'"),
    ],
)
def test_what_is_another_systems(names, message):
    with pytest.raises(ValueError, match=message):
        NAMES.renamed(state(*names))


@pytest.mark.parametrize("name", ["txt_enc.fc.weight", "txt_enc.rnn.weight"])
def test_one_of_two_is_enough(name):
    assert len(NAMES.renamed(state("img_enc.fc.weight", name))) == 2
