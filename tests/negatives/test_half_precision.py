from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import processes
from counterfoil.core.resumable import WorkStopped
from counterfoil.data.dataset import Relation
from counterfoil.negatives import mining
from counterfoil.negatives.filters import FilterConfig, NegativeFilters
from counterfoil.negatives.mining import Certificate, mine_half_precision, mine_lists
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset
from engine_cases import given
from filters_cases import allowed, by_hand, case
from negatives_cases import HOSTS, alike, host, member, ragged


def made(seed: int, images: int = 40, near: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors, nearer to each other the smaller `near`, and who owns whom."""
    rng = torch.Generator().manual_seed(seed)
    text_to_image = ragged(images, seed, 2).text_to_image
    left = torch.randn(1, 8, generator=rng) + near * torch.randn(images, 8, generator=rng)
    return left, torch.randn(len(text_to_image), 8, generator=rng), text_to_image


def halved(
    members: list[EmbeddedDataset], text_to_image: Tensor, **more: object
) -> tuple[HardNegativeLists, Certificate]:
    return mine_half_precision(members, text_to_image, texts_per_image=6, images_per_text=4, **more)  # type: ignore[arg-type]


def exact(members: list[EmbeddedDataset], text_to_image: Tensor) -> HardNegativeLists:
    return mine_lists(members, text_to_image, texts_per_image=6, images_per_text=4)


def same(a: HardNegativeLists, b: HardNegativeLists) -> bool:
    return torch.equal(a.texts, b.texts) and torch.equal(a.images, b.images)


@pytest.mark.parametrize("near", [1.0, 0.01])
@pytest.mark.parametrize("slack", [0, 5])
def test_lists_from_half_precision_are_those_of_single(near: float, slack: int) -> None:
    left, right, text_to_image = made(1, near=near)
    members = [member(left, right), member(left.flip(1), right.flip(1) * 2)]
    lists, certificate = halved(members, text_to_image, slack=slack)
    assert same(lists, exact(members, text_to_image))
    assert 0 < certificate.error < certificate.bound == 2 * certificate.error
    if slack == 0:
        assert certificate.certain_images < certificate.images


@pytest.fixture
def uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No list can be certain that has left anything out."""
    monkeypatch.setattr(mining, "SAFETY", 1e12)


@pytest.mark.usefixtures("uncertain")
def test_what_is_uncertain_is_mined_again() -> None:
    left, right, text_to_image = made(2, near=1e-3)
    lists, certificate = halved([member(left, right)], text_to_image, slack=2)
    assert certificate.certain_images == certificate.certain_texts == 0
    assert same(lists, exact([member(left, right)], text_to_image))
    assert "1e+12 times that" in certificate.describe()


@pytest.mark.parametrize("slack", [0, 5, 99])
@pytest.mark.parametrize("name", HOSTS)
def test_every_host_mines_the_same_in_half_precision(name: str, slack: int) -> None:
    text_to_image = ragged(24, 5, 2).text_to_image
    members = [host(name, 24, len(text_to_image))]
    lists, certificate = halved(members, text_to_image, slack=slack)
    assert alike(lists, exact(members, text_to_image), members, text_to_image)
    if name in ("scan-t2i", "bfan"):  # large products follow autocast
        assert certificate.error > 1e-4
    if slack == 99:
        assert (certificate.certain_images, certificate.certain_texts) == (24, len(text_to_image))


@pytest.mark.usefixtures("uncertain")
def test_lists_as_long_as_the_corpus_are_certain_at_once() -> None:
    left, right, text_to_image = made(6)
    lists, certificate = halved([member(left, right)], text_to_image, slack=999)
    assert (certificate.certain_images, certificate.certain_texts) == (40, len(text_to_image))
    assert same(lists, exact([member(left, right)], text_to_image))


def test_short_lists_end_in_minus_one() -> None:
    text_to_image = Relation(torch.tensor([0, 0, 0, 1]), images=2).text_to_image
    members = [member(torch.randn(2, 8), torch.randn(4, 8))]
    for slack in (0, 3):
        lists, _ = halved(members, text_to_image, slack=slack)
        assert (lists.texts >= 0).sum(1).tolist() == [1, 3]
        assert (lists.images >= 0).sum(1).tolist() == [1, 1, 1, 1]
        assert lists.text_scores is not None
        assert torch.equal(lists.text_scores.isinf(), lists.texts < 0)


@pytest.mark.parametrize("slack", [0, 4])
@pytest.mark.parametrize(
    "plan",
    [
        FilterConfig(captions=0.7),
        FilterConfig(pictures=0.6),
        FilterConfig(captions=0.8, pictures=0.8),
    ],
    ids=lambda plan: " ".join(plan.describe()),
)
def test_near_duplicates_are_left_out(plan: FilterConfig, slack: int) -> None:
    dataset, scores, guide = case(13, 37, 5)
    options = {"slack": slack, "filters": NegativeFilters(plan, dataset)}
    lists, certificate = halved([given(scores)], dataset.text_to_image, **options)
    assert certificate.error == 0.0  # eighths are exact in bfloat16
    texts, images = (allowed(plan, dataset, scores, guide, side) for side in ("image", "text"))
    assert lists.texts.tolist() == by_hand(scores, texts, 6, 0)
    assert lists.images.tolist() == by_hand(scores.T, images.T, 4, 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"texts_per_image": 0}, "texts=0: a list of negatives has at least 1"),
        ({"images_per_text": -1}, "images=-1: a list of negatives has at least 1"),
        ({"slack": -1}, "slack=-1: 0 or more are kept besides the wanted ones"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, float], message: str) -> None:
    left, right, text_to_image = made(1)
    settings = {"texts_per_image": 2, "images_per_text": 2, **wrong}
    with pytest.raises(ValueError, match=message):
        mine_half_precision([member(left, right)], text_to_image, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", [{"skip": 2}, {"lowest": -1.0}, {"below_positive": 0.1}])
def test_filters_that_judge_scores_are_refused(setting: dict[str, float]) -> None:
    dataset, scores, _ = case(13, 37, 5)
    filters = NegativeFilters(FilterConfig(**setting), dataset)  # type: ignore[arg-type]
    (name,) = setting
    with pytest.raises(ValueError, match=rf"{name}=.* judges scores, .*; mine in float32, or"):
        halved([given(scores)], dataset.text_to_image, filters=filters)


def test_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="their sizes are none"):
        halved([], torch.zeros(0, dtype=torch.long))


def kept(
    folder: Path, stop_after: int, **more: object
) -> tuple[HardNegativeLists, Certificate] | None:
    """Lists of SCAN in small tiles; None when stopped."""
    torch.set_num_threads(1)
    text_to_image = ragged(40, 5, 2).text_to_image
    left = [stop_after]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    members = [host("scan-t2i", 40, len(text_to_image))]
    settings = {"tile": (16, 16), "slack": 2, "keep": folder, "every": 0.0, "stop": stop, **more}
    try:
        return halved(members, text_to_image, **settings)
    except WorkStopped:
        return None


def test_half_precision_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    expected = kept(tmp_path / "whole", 999)
    stops, found = 0, None
    while found is None:
        found = kept(tmp_path / "kept", stops)
        stops += 1
    assert stops >= 3
    assert expected is not None
    assert same(found[0], expected[0])
    assert found[1] == expected[1]


@pytest.mark.usefixtures("uncertain")
def test_what_is_uncertain_may_be_stopped_too(tmp_path: Path) -> None:
    asked = [0]

    def count() -> bool:
        asked[0] += 1
        return False

    assert kept(tmp_path / "counted", 0, stop=count, slack=0) is not None
    assert kept(tmp_path / "kept", asked[0] - 2, slack=0) is None
    assert kept(tmp_path / "kept", 999, slack=0) is not None


def test_what_was_kept_in_another_precision_is_refused(tmp_path: Path) -> None:
    assert kept(tmp_path, 1) is None
    text_to_image = ragged(40, 5, 2).text_to_image
    members = [host("scan-t2i", 40, len(text_to_image))]
    with pytest.raises(ValueError, match="precision is bfloat16 there and float32 here"):
        mine_lists(
            members,
            text_to_image,
            texts_per_image=8,
            images_per_text=6,
            tile=(16, 16),
            keep=tmp_path,
        )


def _stopped_here(folder: Path, stop_after: int) -> list[list[list[int]]] | None:
    found = kept(folder, stop_after)
    return found and [found[0].texts.tolist(), found[0].images.tolist()]


def test_another_number_of_processes_goes_on(tmp_path: Path) -> None:
    alone = _stopped_here(tmp_path / "whole", 999)
    assert processes.run(_stopped_here, 2, tmp_path / "kept", 0) == [None, None]
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert processes.run(_stopped_here, 3, tmp_path / "kept", 999) == [alone] * 3
