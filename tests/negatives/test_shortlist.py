from __future__ import annotations

import pytest
import torch
from torch import Tensor

import processes
from counterfoil.engine.tiles import Member
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.mine import mine
from counterfoil.negatives.proposed import reranked
from counterfoil.negatives.shortlist import Certificate, mine_halved
from negatives_cases import member, ragged, ranked


def made(seed: int, images: int = 40, near: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors, nearer to each other the smaller `near`, and who owns whom."""
    rng = torch.Generator().manual_seed(seed)
    owner = ragged(images, seed, 2).owner
    left = torch.randn(1, 8, generator=rng) + near * torch.randn(images, 8, generator=rng)
    return left, torch.randn(len(owner), 8, generator=rng), owner


def halved(members: list[Member], owner: Tensor, **more: float) -> tuple[Lists, Certificate]:
    return mine_halved(members, owner, texts_per_image=6, images_per_text=4, **more)  # type: ignore[arg-type]


def same(a: Lists, b: Lists) -> bool:
    return torch.equal(a.texts, b.texts) and torch.equal(a.images, b.images)


@pytest.mark.parametrize("near", [1.0, 0.01])
@pytest.mark.parametrize("slack", [0, 5])
def test_lists_from_half_precision_are_those_of_single(near: float, slack: int) -> None:
    left, right, owner = made(1, near=near)
    members = [member(left, right), member(left.flip(1), right.flip(1) * 2)]
    lists, certificate = halved(members, owner, slack=slack)
    assert same(lists, mine(members, owner, texts_per_image=6, images_per_text=4))
    assert 0 < certificate.error < certificate.bound == 2 * certificate.error
    if slack == 0:
        assert certificate.certain_images < certificate.images


def test_what_is_uncertain_is_mined_again() -> None:
    left, right, owner = made(2, near=1e-3)
    lists, certificate = halved([member(left, right)], owner, slack=2, bound=9e9)
    assert certificate.certain_images == certificate.certain_texts == 0
    assert same(lists, mine([member(left, right)], owner, texts_per_image=6, images_per_text=4))
    assert "as given" in certificate.in_words()


def test_everything_proposed_is_mining_and_less_is_a_sort_of_that() -> None:
    left, right, owner = made(3)
    relation = ragged(40, 3, 2)
    every = ranked(torch.randn(40, len(owner)), relation, len(owner), 40)
    exact = mine([member(left, right)], owner, texts_per_image=6, images_per_text=4)
    sizes = {"texts_per_image": 6, "images_per_text": 4}
    assert same(reranked(every, [member(left, right)], owner, **sizes), exact)
    few = Lists(every.texts[:, :9], every.images[:, :7])
    got = reranked(few, [member(left, right)], owner, **sizes)
    scores = left @ right.T
    for image, row in enumerate(got.texts.tolist()):
        listed = few.texts[image].tolist()
        assert row == sorted(listed, key=lambda text: -scores[image, text].item())[:6]


def _here() -> list[list[list[int]]]:
    torch.set_num_threads(1)
    left, right, owner = made(4)
    lists, _ = halved([member(left, right)], owner, slack=1)
    return [lists.texts.tolist(), lists.images.tolist()]


def test_two_processes_find_what_one_does() -> None:
    alone = _here()
    assert processes.run(_here, 2) == [alone, alone]
