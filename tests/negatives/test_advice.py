"""List lengths and the expected use of mining by the sizes of data and batch."""

from __future__ import annotations

import pytest
import torch

from counterfoil.data.readers import load_dataset
from counterfoil.negatives.advice import advise_mining
from counterfoil.recipes.clip import mining_reasons, train_recipe


@pytest.mark.parametrize(
    ("captions", "images", "lengths"),
    [
        (145_000, 29_000, (300, 60)),
        (30_000, 6_000, (300, 60)),
        (10_000, 2_000, (100, 20)),
        (400, 80, (20, 5)),
        (10, 4, (9, 3)),  # there are no more wrong ones
        (1, 1, (1, 1)),
    ],
)
def test_lists_are_a_hundredth_of_the_data_within_limits(captions, images, lengths) -> None:
    advice = advise_mining(captions, images)
    assert (advice.texts, advice.images) == lengths


def test_the_mean_rank_is_that_of_drawn_batches() -> None:
    rng = torch.Generator().manual_seed(0)
    ranks = [torch.randperm(999, generator=rng)[:7].min() + 1 for _ in range(4000)]
    drawn = torch.stack(ranks).double().mean().item()
    assert advise_mining(1000, 200, batch=8).rank == pytest.approx(drawn, rel=0.05)


def test_mining_pays_where_a_batch_rarely_holds_a_listed_caption() -> None:
    small, large = (advise_mining(30_000, 6_000, batch=batch) for batch in (8, 128))
    assert small.pays
    assert not large.pays
    assert "rank of 3,750, beyond the lists" in small.reasons[1]
    assert "rank of 234, in the lists" in large.reasons[1]


@pytest.mark.papers
def test_a_training_on_own_photos_mines_lists_of_these_lengths_and_says_why() -> None:
    photos = load_dataset("scenes:images=60")  # 40 for training, with 200 captions
    options = {"model": None, "way": "full", "written": None, "teachers": ()}
    recipe = train_recipe("aoq/mobilenet", photos, **options)
    assert (recipe.stage("lists").texts, recipe.stage("lists").images) == (20, 5)
    lengths, rank, margin = mining_reasons(recipe, photos)
    assert "20 captions an image and 5 images a caption" in lengths
    assert "batch of 128 has a mean rank of 2" in rank
    assert margin.startswith("Margin 0")
    assert not mining_reasons(train_recipe("mobilenet", photos, **options), photos)
