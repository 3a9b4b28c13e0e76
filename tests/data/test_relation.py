import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.data.dataset import Relation


@st.composite
def relations(draw):
    images = draw(st.integers(1, 6))
    text_to_image = draw(st.lists(st.integers(-1, images - 1), max_size=20))
    return text_to_image, images


@given(relations(), st.randoms())
def test_captions_are_those_that_a_loop_finds(case, random):
    text_to_image, images = case
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    asked = [random.randrange(images) for _ in range(random.randrange(8))]
    texts, counts = relation.captions(torch.tensor(asked, dtype=torch.long))
    expected = [[t for t, o in enumerate(text_to_image) if o == image] for image in asked]
    assert counts.tolist() == [len(own) for own in expected]
    assert texts.tolist() == [t for own in expected for t in own]


@given(relations())
def test_positive_is_true_exactly_where_a_text_describes(case):
    text_to_image, images = case
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    found = relation.positive(relation.rows(), torch.arange(len(text_to_image)))
    assert found.shape == (images, len(text_to_image))
    assert found.tolist() == [[o == image for o in text_to_image] for image in range(images)]


@given(relations(), st.integers(0, 100))
def test_random_caption_describes_its_image(case, seed):
    text_to_image, images = case
    relation = Relation(torch.tensor(text_to_image, dtype=torch.long), images=images)
    rng = torch.Generator().manual_seed(seed)
    drawn = relation.random_caption(relation.rows(), rng).tolist()
    for image, text in enumerate(drawn):
        assert (text == -1) == (image not in text_to_image)
        assert text == -1 or text_to_image[text] == image


def test_random_caption_is_uniform():
    relation = Relation(torch.tensor([0, 1, 0, 0]), images=2)
    rng = torch.Generator().manual_seed(0)
    drawn = relation.random_caption(torch.zeros(6000, dtype=torch.long), rng)
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    torch.testing.assert_close(shares, torch.tensor([1, 0, 1, 1]) / 3, atol=0.03, rtol=0)


def test_owner_that_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"texts describe images 0 to 2.*images 0 to 1"):
        Relation(torch.tensor([0, 2]), images=2)
    with pytest.raises(ValueError, match="images -2 to 0"):
        Relation(torch.tensor([0, -2]), images=2)
