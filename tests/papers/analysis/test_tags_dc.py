"""Words and cases of TAGS-DC, against loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from counterfoil.evaluation.bootstrap import shares
from counterfoil.papers.tags.dc_figures import (
    WordPredictions,
    choose_cases,
    margin_differences,
    word_counts,
)

# Section 4.4: words doubted and corrected.


def drawn(seed: int = 0, *, pieces: bool = True) -> WordPredictions:
    """Captions of up to 8 tokens between two special ones, some words of two pieces."""
    rng = torch.Generator().manual_seed(seed)
    many, length = 30, 10
    real = torch.randint(3, length + 1, (many,), generator=rng)
    place = torch.arange(length)
    mask = place < real[:, None]
    said = mask & (place > 0) & (place < real[:, None] - 1)
    original = torch.randint(4, 9, (many, length), generator=rng)
    slots = said & (torch.rand(many, length, generator=rng) < 0.5)
    other = torch.randint(4, 9, (many, length), generator=rng)
    words = torch.where(said, (place - 1) // 2, -1).expand(many, length)
    return WordPredictions(
        original=original,
        written=other.where(slots, original),
        mask=mask,
        counted=said,
        slots=slots,
        right=torch.rand(many, length, generator=rng),
        better=torch.randint(4, 9, (many, length), generator=rng),
        words=words if pieces else None,
    )


def slowly(read: WordPredictions) -> dict[tuple[str, str], tuple[list[bool], list[bool]]]:
    """Every reading by loops: what was right, and what doing nothing gets right."""
    found: dict[tuple[str, str], tuple[list[bool], list[bool]]] = {}

    def note(task: str, of: str, right: bool, idle: bool) -> None:
        both = found.setdefault((task, of), ([], []))
        both[0].append(right)
        both[1].append(idle)

    for w in range(len(read.original)):
        groups: dict[int, list[int]] = {}
        fixed, replaced, judged, intact, doubts = True, True, True, True, False
        for t in range(read.original.shape[1]):
            if not read.mask[w, t]:
                continue
            old, new = int(read.original[w, t]), int(read.written[w, t])
            trusted, better = float(read.right[w, t]) > 0.5, int(read.better[w, t])
            same = old == new
            note("doubt", "tokens, special ones too", trusted == same, same)
            if not read.counted[w, t]:
                continue
            word = t if read.words is None else int(read.words[w, t])
            groups.setdefault(word, []).append(t)
            note("doubt", "tokens", trusted == same, same)
            note("doubt", "right tokens" if same else "wrong tokens", trusted == same, same)
            note("correct", "tokens", better == old, same)
            if not same:
                note("correct", "wrong tokens", better == old, False)
            if read.slots[w, t]:
                note("doubt", "tokens that were hidden", trusted == same, same)
                note("correct", "tokens that were hidden", better == old, same)
                if same:
                    note("correct", "hidden tokens that are right", better == old, True)
            fixed &= same or better == old
            replaced &= (new if trusted else better) == old
            judged &= trusted == same
            intact &= same
            doubts |= not trusted
        for tokens in groups.values():
            wrong = any(read.original[w, t] != read.written[w, t] for t in tokens)
            doubted = any(read.right[w, t] <= 0.5 for t in tokens)
            note("doubt", "words", doubted == wrong, not wrong)
            note("doubt", f"{'wrong' if wrong else 'right'} words", doubted == wrong, not wrong)
            if wrong:
                missed = [t for t in tokens if read.original[w, t] != read.written[w, t]]
                missed = [t for t in missed if read.original[w, t] != read.better[w, t]]
                note("correct", "wrong words", not missed, False)
        note("doubt", "captions, every word", judged, intact)
        note("doubt", "captions with any doubt", doubts, False)
        note("correct", "captions, only wrong words replaced", fixed, intact)
        note("correct", "captions, doubted words replaced", replaced, intact)
    return found


@pytest.mark.parametrize("pieces", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_readings_by_loops(seed, pieces):
    read = drawn(seed, pieces=pieces)
    wanted = slowly(read)
    sides = [wanted[("doubt", f"{side} tokens")] for side in ("wrong", "right")]
    images = torch.arange(len(read.original)) // 3
    seen = set()
    for one in word_counts(read):
        found, idle = shares([one.correct, one.unchanged], images, resamples=3)
        seen.add((one.task, one.of))
        if one.of == "tokens, mean of wrong and right":
            assert found.value == pytest.approx(sum(sum(s[0]) / len(s[0]) for s in sides) / 2)
            assert idle.value == 0.5
            continue
        right, lazy = wanted[(one.task, one.of)]
        assert found.count == len(right)
        assert found.value == pytest.approx(sum(right) / len(right))
        assert idle.value == pytest.approx(sum(lazy) / len(lazy))
    assert seen == {*wanted, ("doubt", "tokens, mean of wrong and right")}


def test_a_perfect_reader_and_one_in_doubt_about_everything():
    read = drawn()
    same = (read.written == read.original).float()
    perfect = replace(read, right=same, better=read.original, words=None)
    images = torch.arange(len(read.original))
    for one in word_counts(perfect):
        if one.of != "captions with any doubt":
            assert shares([one.correct], images, resamples=3)[0].value == 1
    half = replace(read, right=same * 0 + 0.5, better=None, words=None)
    found = {
        one.of: shares([one.correct], images, resamples=3)[0].value for one in word_counts(half)
    }
    assert found["wrong tokens"] == 1
    assert found["right tokens"] == 0


def test_what_the_model_does_not_answer_is_not_read():
    read = drawn()
    assert word_counts(replace(read, right=None, better=None)) == ()


def test_some_of_the_captions():
    read = drawn()
    some = read.rows(torch.tensor([4, 2]))
    assert torch.equal(some.written, read.written[[4, 2]])
    assert torch.equal(some.words, read.words[[4, 2]])


# Figure 4: cases.


def test_margins_are_compared_in_units_of_their_spread():
    rng = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 50, generator=rng)
    found = margin_differences(first, second)
    slow = [
        float(b) / float(second.double().std(correction=0))
        - float(a) / float(first.double().std(correction=0))
        for a, b in zip(first, second)
    ]
    assert found.tolist() == pytest.approx(slow)
    torch.testing.assert_close(margin_differences(first * 30, second), found)
    assert margin_differences(torch.ones(3), torch.ones(3)).tolist() == [0, 0, 0]


def test_the_largest_of_each_side_one_a_picture():
    gaps = torch.tensor([5.0, 4, 3, -1, -6, 0, 2])
    images = torch.tensor([0, 0, 1, 1, 2, 3, 4])
    second, first, random = choose_cases(gaps, images, 2)
    assert second == [0, 2]
    assert first == [4], "row 3 is of a picture that is shown already"
    assert set(random) == {5, 6}
    assert choose_cases(gaps, images, 1, seed=3) == choose_cases(gaps, images, 1, seed=3)
    drawn = {tuple(choose_cases(gaps, images, 1, seed=seed)[2]) for seed in range(20)}
    assert len(drawn) > 1
    assert choose_cases(gaps.abs(), images, 2)[1] == []
