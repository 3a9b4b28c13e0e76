from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from counterfoil.core.config import config_from_dict
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.papers.models.convert import convert_checkpoint
from counterfoil.papers.models.uniter import UNITER, convert_uniter, uniter_from_checkpoint
from uniter_cases import authors_state

PRETRAINED = ("match", "fill", "regress", "classify")


def host(outputs: tuple[str, ...] = PRETRAINED) -> UNITER:
    torch.manual_seed(0)
    made = UNITER(
        layers=2,
        width=128,
        heads=2,
        inner=10,
        vocabulary=120,
        positions=9,
        features=6,
        classes=4,
        mask=103,
        outputs=outputs,
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made


def authors(outputs: tuple[str, ...] = PRETRAINED) -> dict[str, Tensor]:
    return authors_state(host(outputs).state_dict())


def same(ours: UNITER, theirs: UNITER) -> None:
    own = ours.state_dict()
    for name, value in theirs.state_dict().items():
        assert torch.equal(own[name], value), name


def test_a_pretrained_file_as_they_save_it(tmp_path: Path):
    path = tmp_path / "uniter-base.pt"
    torch.save(authors(), path)
    found = convert_checkpoint(path, "uniter")
    built = found.build()
    assert isinstance(built, UNITER)
    same(built, host())
    assert torch.equal(built.says.rank.weight, built.says.match.weight[1:])
    assert found.model.arguments["outputs"] == ("rank", *PRETRAINED)
    assert (built.body.layers[0].heads, built.text.mask_word) == (2, 103)  # 64 to a head
    assert config_from_dict(found.model.to_dict()) == found.model
    same(convert_checkpoint(path, "uniter", bert="a folder").build(), host())


@pytest.mark.parametrize("outputs", [("rank",), ("rank", "match", "doubt", "fill", "correct")])
def test_a_fine_tuned_rank_is_kept(outputs):
    built = uniter_from_checkpoint(Checkpoint(authors(outputs))).build()
    same(built, host(outputs))
    assert len(built.state_dict()) == len(host(outputs).state_dict())


def old(name: str) -> str:
    """As the first BERT in PyTorch called it."""
    if "norm" not in name.lower():
        return name
    return name.replace(".weight", ".gamma").replace(".bias", ".beta")


@pytest.mark.parametrize("before", ["module.{}", "bert.{}"])
def test_old_names_are_known(before):
    state = {before.format(old(name)): value for name, value in authors().items()}
    assert any("gamma" in name for name in state)
    same(uniter_from_checkpoint(Checkpoint(state)).build(), host())


def test_a_text_model_of_bert_is_taken_for_its_layers():
    """Theirs begins from BERT's own file: what BERT has not is fresh, and each time the same."""
    theirs = {
        name.replace("uniter.", "bert."): value
        for name, value in authors(("match", "fill")).items()
        if "itm" not in name
    }
    first, second = (uniter_from_checkpoint(Checkpoint(theirs)) for _ in range(2))
    built = first.build()
    assert first.model.arguments["outputs"] == ("rank", "fill")
    words = host(("match", "fill")).text.word_embeddings.weight
    assert torch.equal(built.text.word_embeddings.weight, words)
    assert torch.equal(built.says.rank.weight, second.build().says.rank.weight)


def test_missing_tensors_begin_fresh_and_unknown_ones_are_left_out():
    state = authors()
    pooler = state.pop("uniter.pooler.dense.weight")
    state["vocabulary_of_nobody"] = torch.zeros(3)
    before = torch.get_rng_state()
    found = uniter_from_checkpoint(Checkpoint(state))
    assert torch.equal(before, torch.get_rng_state())
    built = found.build()
    assert built.pooler.weight.shape == pooler.shape
    assert 0.015 < built.pooler.weight.std() < 0.025


def test_shapes_that_do_not_fit_are_refused():
    state = authors()
    state["uniter.pooler.dense.weight"] = torch.zeros(128, 127)
    with pytest.raises(ValueError, match="these weights do not fit"):
        uniter_from_checkpoint(Checkpoint(state)).build()


def test_another_systems_tensors_are_refused():
    with pytest.raises(ValueError, match=r"has no 'text.word_embeddings.weight'; is it another"):
        convert_uniter({"img_enc.fc.weight": torch.zeros(1)})


def test_options_that_are_none_or_no_numbers():
    built = uniter_from_checkpoint(Checkpoint(authors(), {"heads": None, "mask": None})).build()
    assert (built.body.layers[0].heads, built.text.mask_word) == (2, 103)
    with pytest.raises(ValueError, match=r"heads=\[4\] among its options, where a whole number"):
        uniter_from_checkpoint(Checkpoint(authors(), {"heads": [4]}))
