"""Hubness correction by nearest neighbour normalisation, at the time of a query."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import index_cases
import recipes_cases
from counterfoil import load_dataset, load_model
from counterfoil.search.hubness import HUBNESS, HubnessCorrection, neighbour_bias
from counterfoil.search.index import SearchIndex, build_index, open_index
from counterfoil.serve.service import SearchQuery, SearchService
from recipes_cases import run

SCENES = "scenes:images=60"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def index(tmp_path: Path) -> SearchIndex:
    model = load_model(recipes_cases.clip_like(tmp_path / "clip"))
    return build_index(model, load_dataset(SCENES)["test"], tmp_path / "index")


def test_the_bias_is_the_mean_of_the_nearest() -> None:
    items, bank = torch.randn(7, 4), torch.randn(30, 4)
    expected = [sorted((bank @ item).tolist(), reverse=True)[:3] for item in items]
    found = neighbour_bias(items, bank, 3)
    torch.testing.assert_close(found, torch.tensor(expected).mean(1))
    torch.testing.assert_close(neighbour_bias(items, bank, 99), (items @ bank.T).mean(1))


def test_a_hub_no_longer_is_first_for_everything(tmp_path: Path) -> None:
    """A vector amid all others, nearer to most queries than what they look for."""
    torch.manual_seed(0)
    common = normalize(torch.randn(16), dim=0)
    own = normalize(torch.randn(40, 16), dim=1)
    images = normalize(torch.cat([own + common, common.unsqueeze(0)]), dim=1)
    # captions lie apart from images, in a direction that images have in common too
    queries, bank = (normalize(own + 3 * common + torch.randn(40, 16) / 8, dim=1) for _ in "qb")
    vectors = index_cases.empty(tmp_path, width=16)
    vectors.change(images=index_cases.images(index_cases.names(41), images))
    correction = HubnessCorrection(texts=bank, images=images, nearest=8)
    rows = {}
    for name, offsets in (("plain", None), ("nnn", correction.of_rows(vectors.images, "image"))):
        found, scores = vectors.images.search(queries, 3, offsets=offsets)
        rows[name] = found[:, 0]
        whole = queries @ images.T + (0 if offsets is None else offsets)
        torch.testing.assert_close(scores, whole.topk(3, 1).values)
    first = {name: int((found == 40).sum()) for name, found in rows.items()}
    assert first["plain"] > 10 * max(first["nnn"], 1)
    hits = {name: int((found == torch.arange(40)).sum()) for name, found in rows.items()}
    assert hits["nnn"] > hits["plain"]


def test_an_index_is_corrected_also_where_it_grows(index: SearchIndex, tmp_path: Path) -> None:
    data = load_dataset(SCENES)
    caption = data["test"].texts[3]
    plain = {hit.id: hit.score for hit in index.search(caption, 99)}
    bank = index.correct_hubness(data["train"], nearest=5, alpha=0.5)
    index.add(data["dev"])
    opened = open_index(tmp_path / "index")
    hits = opened.search(caption, 99)
    assert len(hits) == len(data["test"]) + len(data["dev"])
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    images = opened.vectors.images
    for hit in hits:
        vector = images.vectors(torch.tensor([images.rows[hit.id]]))
        bias = neighbour_bias(vector, bank.texts, 5)
        if hit.id in plain:
            assert hit.score == pytest.approx(plain[hit.id] - 0.5 * float(bias), abs=1e-5)
    query = SearchQuery(caption, 5)
    (served,) = SearchService(opened).search([query])
    assert [(hit.id, hit.score) for hit in served] == [(hit.id, hit.score) for hit in hits[:5]]
    alike = opened.search_id(hits[0].id, 99, find="images")  # of one modality: as before
    rows = [images.rows[name] for name in (hits[0].id, alike[0].id)]
    pair = images.vectors(torch.tensor(rows))
    assert alike[0].score == pytest.approx(float(pair[0] @ pair[1]), abs=1e-5)


def test_probabilities_are_of_scores_before_correction(index: SearchIndex) -> None:
    data = load_dataset("scenes:images=300")
    index.add(data["dev"])
    index.calibrate(data["dev"])
    caption = data["dev"].texts[0]
    before = {hit.id: hit.probability for hit in index.search(caption, 99)}
    index.correct_hubness(data["train"], nearest=5)
    after = {hit.id: hit.probability for hit in index.search(caption, 99)}
    assert before == pytest.approx(after, abs=1e-5)
    assert None not in before.values()


def test_the_command_and_what_is_refused(
    index: SearchIndex, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "index"
    index.close()
    assert run("index", "--output", place, "--hubness", SCENES) == 0
    assert "hubness is corrected with 200 captions and 40 images" in capsys.readouterr().out
    (place / HUBNESS).write_bytes(b"no bank")
    with pytest.raises(ValueError, match="bank of hubness"):
        open_index(place).search("a dog")
    HubnessCorrection(torch.ones(2, 3), torch.ones(2, 3)).write(place)
    with pytest.raises(ValueError, match=r"no bank that this version reads for vectors of width 8"):
        open_index(place).search("a dog")
    with pytest.raises(ValueError, match="hubness is corrected with both"):
        HubnessCorrection(torch.ones(0, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"nearest=0 and alpha=0\.75"):
        HubnessCorrection(torch.ones(2, 3), torch.ones(2, 3), nearest=0)
