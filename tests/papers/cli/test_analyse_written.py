from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import explain_cases
import hub_cases
import sentence_cases
from analysis_cases import SCENES
from corpus_cases import karpathy_image, write_karpathy
from counterfoil.core.types import Pairs
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import scene
from counterfoil.data.scenes.truth import is_true
from counterfoil.data.tokenizers import split_words
from counterfoil.evaluation.explain import explain
from counterfoil.evaluation.language_models import CausalLM, NGrams, ngram_log_probs
from counterfoil.model import Model, load_model
from counterfoil.negatives.generated import GeneratedCaption, GeneratedStore
from counterfoil.negatives.similarity import SentenceEncoder
from recipes_cases import run

scenes = cache(load_dataset)  # scenes are rendered once


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Foils of the test split by rule."""
    folder = tmp_path_factory.mktemp("rules") / "written"
    with contextlib.redirect_stdout(io.StringIO()):
        assert (
            run(
                "papers",
                "write",
                "rules",
                SCENES,
                "--split",
                "test",
                "--output",
                folder,
                "--seed",
                3,
            )
            == 0
        )
    return folder


def stored(folder: Path, split: str = "test") -> tuple[GeneratedCaption, ...]:
    dataset = scenes(SCENES).split(split)
    return tuple(GeneratedStore.open(folder, fingerprint=dataset.fingerprint).foils())


def captions_of(foil: GeneratedCaption) -> list[str]:
    """The captions of a foil's picture."""
    dataset = scenes(SCENES)
    image = dataset.image_ids.index(foil.image)
    return [dataset.texts[row] for row in (dataset.text_to_image == image).nonzero().flatten()]


def known_words(foil: GeneratedCaption) -> bool:
    """Whether all new words occur in the captions of the picture, the paper's rule."""
    own = {word for caption in captions_of(foil) for word in split_words(caption)}
    return {word for c in foil.changed for word in split_words(c.new)} <= own


def picture_scores(model: Model, foils: Sequence[GeneratedCaption]) -> list[tuple[float, float]]:
    """Scores of foils and of the captions they were made of, picture by picture."""
    dataset = scenes(SCENES)
    found: dict[tuple[str, str], float] = {}
    for image in {foil.image for foil in foils}:
        texts = list({t for f in foils if f.image == image for t in (f.foil, f.caption)})
        scores = model.score(dataset.pictures.open(dataset.image_ids.index(image)), texts)
        found |= {(image, text): score for text, score in zip(texts, scores.tolist())}
    return [(found[f.image, f.foil], found[f.image, f.caption]) for f in foils]


def test_true_rate_of_scenes(written, analysed):
    shown, _, numbers = analysed("true-rate", written, "--examples", 2, "--seed", 4, figures=1)
    foils = stored(written)
    truth = [is_true(foil.foil, scene(foil.image)) for foil in foils]
    outside = truth.count(None)
    assert outside
    assert f"{len(foils):,} by rules (VSE-C), seed 3; {outside:,} outside" in shown
    [one] = numbers["sets"]
    none, paper = one["filters"][:2]
    assert (none["name"], paper["name"]) == ("none", "captions")
    assert none["kept"] == one["captions"] == len(foils) - outside
    assert none["true"] == one["true"] == truth.count(True) > 0
    kept = [t for foil, t in zip(foils, truth) if t is not None and not known_words(foil)]
    assert (paper["kept"], paper["true"]) == (len(kept), sum(kept))
    assert paper["false_rate"]["value"] == pytest.approx(100 * kept.count(False) / len(kept))
    assert "seed 4" in numbers["protocol"]
    assert "scores" not in one or one["scores"] == []


def test_true_rate_with_a_guide(models, written, analysed):
    guide = models / "run/online"
    _, _, numbers = analysed("true-rate", written, "--guide", guide, "--slack", 0.05, figures=2)
    [one] = numbers["sets"]
    foils = [foil for foil in stored(written) if is_true(foil.foil, scene(foil.image)) is not None]
    kept = [
        is_true(foil.foil, scene(foil.image))
        for foil, (new, old) in zip(foils, picture_scores(load_model(str(guide)), foils))
        if new < old - 0.05 and not known_words(foil)
    ]
    guided = {sieve["name"]: sieve for sieve in one["filters"]}["captions + guide"]
    assert (guided["kept"], guided["true"]) == (len(kept), sum(kept))
    assert 0 < len(kept) < one["captions"]
    names = [score["name"] for score in one["scores"]]
    assert names == ["online: score", "online: score less that of its own"]
    for score in one["scores"]:
        assert [below["name"] for below in score["below"]] == ["1", "2", "5", "10", "20", "50"]
        assert score["below"][-1]["kept"] == one["captions"] - round(0.5 * one["captions"])


def test_stored_scores_are_asked_too(written, analysed, tmp_path):
    dataset = scenes(SCENES).split("test")
    truth = [is_true(foil.foil, scene(foil.image)) for foil in stored(written)]
    some = [
        replace(foil, scores={"foil": float(bool(true)), "caption": float(n)})
        for n, (foil, true) in enumerate(zip(stored(written), truth))
    ]
    folder = tmp_path / "scored"
    GeneratedStore.write(folder, some, dataset, writer="hand", settings={}, seed=0)
    found = analysed("true-rate", folder)[2]["sets"][0]["scores"]
    assert [one["name"] for one in found] == ["stored score", "stored score less the caption's"]
    assert found[0]["roc_auc"]["value"] == 100
    assert 0 < found[1]["roc_auc"]["value"] < 100


@pytest.fixture
def flickr(tmp_path) -> Callable[..., tuple[str, ...]]:
    """Two photos, and what a crowd thinks of captions of the other one."""
    folder = tmp_path / "photos"
    folder.mkdir()
    write_karpathy(
        folder,
        [
            karpathy_image("a.jpg", "test", ["A dog runs.", "Dogs run on grass."]),
            karpathy_image("b.jpg", "test", ["A dog runs on grass.", "A cat."], first=2),
        ],
    )
    crowd = tmp_path / "crowd.txt"
    crowd.write_text(
        "a.jpg\ta.jpg#0\t1\t3\t0\n"
        "a.jpg\tb.jpg#0\t1\t3\t0\n"
        "a.jpg\tb.jpg#1\t0\t0\t3\n"
        "b.jpg\ta.jpg#1\t0.3\t1\t2\n"
    )
    return "--crowd", str(crowd), "--data", str(folder)


def test_true_rate_of_a_crowd(flickr, analysed):
    shown, page, numbers = analysed("true-rate", *flickr, data=None)
    [one] = numbers["sets"]
    assert "3 captions shown with other pictures" in shown
    assert "1 shown with their own left out" in shown
    assert (one["captions"], one["true"]) == (3, 1)
    told = {sieve["name"]: (sieve["kept"], sieve["true"]) for sieve in one["filters"]}
    assert told == {"none": (3, 1), "captions": (2, 0), "captions + lemmas": (1, 0)}
    assert page.count("data:image") == 0  # no true one is left to show


def test_true_rate_with_a_sentence_encoder(flickr, written, analysed, tmp_path):
    pytest.importorskip("sentence_transformers")
    words = ["a", "dog", "dogs", "runs", "on", "grass", "cat", "red", "blue", "circle", "above"]
    folder = sentence_cases.encoder(tmp_path / "encoder", words)
    meanings = SentenceEncoder(folder)

    def near(text, others):
        own = meanings.vectors([text, *others])
        return float((own[1:] @ own[0]).max())

    one = analysed("true-rate", *flickr, "--encoder", folder, data=None)[2]["sets"][0]
    said = ["A dog runs.", "Dogs run on grass."], ["A dog runs on grass.", "A cat."]
    kept = 0
    for image, text in ((0, said[1][0]), (0, said[1][1]), (1, said[0][1])):
        first, second = said[image]
        taken = set(split_words(text)) <= {w for own in said[image] for w in split_words(own)}
        kept += near(text, [first, second]) < near(first, [second]) and not taken
    filters = {sieve["name"]: sieve["kept"] for sieve in one["filters"]}
    assert filters["captions + encoder"] == kept
    names = [score["name"] for score in one["scores"]]
    assert names == ["encoder: cosine", "encoder: cosine less that of its own"]

    found = analysed("true-rate", written, "--encoder", folder, "--slack", 0.01, name="scenes")[2]
    assert f"sentence encoder {folder}, slack 0.01" in found["protocol"]
    kept = 0
    for foil in stored(written):
        if is_true(foil.foil, scene(foil.image)) is None or known_words(foil):
            continue
        others = captions_of(foil)
        others.remove(foil.caption)
        kept += near(foil.foil, others) < near(foil.caption, others) - 0.01
    filters = {sieve["name"]: sieve["kept"] for sieve in found["sets"][0]["filters"]}
    assert filters["captions + encoder"] == kept < filters["captions"]


def test_true_rate_of_a_crowd_with_a_guide(models, flickr, analysed):
    folder = Path(flickr[-1])
    _, _, numbers = analysed("true-rate", *flickr, "--guide", models / "pixels", data=None)
    model, dataset = load_model(str(models / "pixels")), load_dataset(str(folder))
    kept = 0
    for image, text in ((0, 2), (0, 3), (1, 1)):
        own = (dataset.text_to_image == image).nonzero().flatten().tolist()
        rows = [text, *own]
        scores = model.score(dataset.pictures.open(image), [dataset.texts[row] for row in rows])
        taken = set(split_words(dataset.texts[text])) <= {
            w for r in own for w in split_words(dataset.texts[r])
        }
        kept += bool(scores[0] < scores[1:].mean()) and not taken
    found = {sieve["name"]: sieve["kept"] for sieve in numbers["sets"][0]["filters"]}
    assert found["captions + guide"] == kept


def test_numbers_are_json_also_where_nothing_is_true(written, analysed, tmp_path):
    """What cannot be counted is null and a dash."""
    folder = tmp_path / "false"
    dataset = scenes(SCENES).split("test")
    some = [foil for foil in stored(written) if is_true(foil.foil, scene(foil.image)) is False][:5]
    GeneratedStore.write(folder, some, dataset, writer="hand", settings={}, seed=0)
    shown, page, numbers = analysed("true-rate", folder)
    none = numbers["sets"][0]["filters"][0]
    assert none["caught"]["value"] is None
    assert none["false_rate"]["value"] == 100
    assert "–" in shown
    assert "NaN" not in json.dumps(numbers)
    assert ">nan" not in page


def test_fluency_by_ngrams(tmp_path, written, analysed):
    train = scenes(SCENES).split("train")
    foils = stored(written)
    foils = (replace(foils[0], foil=train.texts[3]), *foils[1:])  # as it might be written
    folder = tmp_path / "known"
    dataset = scenes(SCENES).split("test")
    GeneratedStore.write(folder, foils, dataset, writer="hand", settings={}, seed=0)
    shown, _, numbers = analysed("fluency", folder, figures=1)
    [one] = numbers["sets"]
    asked = {text for foil in foils for text in (foil.caption, foil.foil)}
    kept = [text for text in train.texts if text not in asked]
    assert len(kept) < len(train.texts)
    assert f"3-grams of {len(kept):,} training captions" in shown
    model = NGrams.of(kept)
    for name, captions in (
        ("captions", [foil.caption for foil in foils]),
        ("written", [foil.foil for foil in foils]),
    ):
        assert one[name]["captions"] == len(foils)
        assert one[name]["whole"]["value"] == pytest.approx(perplexity(model, captions))
        assert one[name]["typical"]["value"] == pytest.approx(
            float((-model.scores(captions)).mean().exp())
        )
    assert set(one["kinds"]) == {foil.kind for foil in foils} == {"noun", "numeral", "relation"}
    assert one["written"]["times"]["value"] > 1.2
    assert "VSE-C, rules 292.76" in shown


def test_fluency_of_the_first_by_a_language_model(tmp_path, written, analysed):
    words = sorted({word for foil in stored(written) for word in foil.caption.split()})
    lm = hub_cases.gpt2(tmp_path / "lm", words)
    dataset = scenes(SCENES).split("test")
    short = [foil for foil in stored(written) if len(foil.foil.split()) < 6]
    folder = tmp_path / "short"
    GeneratedStore.write(folder, short, dataset, writer="hand", settings={}, seed=0)
    shown, _, numbers = analysed("fluency", folder, "--lm", lm, "--each", 1)
    first = list({foil.text: foil for foil in reversed(short)}.values())[::-1]
    [one] = numbers["sets"]
    spoken = CausalLM(lm).log_probs([foil.foil for foil in first])
    assert one["written"]["captions"] == len(first) < len(short)
    whole = float((-spoken.logs.sum() / spoken.tokens.sum()).exp())
    assert one["written"]["whole"]["value"] == pytest.approx(whole)
    assert "the first 1 of each caption" in shown
    assert "captions behind <|endoftext|>" in shown


def test_fluency_knows_nothing_of_measured_pictures(tmp_path, analysed, capsys):
    """Of a training split whose pictures are all measured, nothing is left to learn from."""
    folder = tmp_path / "train"
    assert run("papers", "write", "rules", SCENES, "--output", folder) == 0
    code = run(
        "papers", "analyse", "fluency", folder, "--data", SCENES, "--output", tmp_path / "p.html"
    )
    assert code == 2
    assert "must not know these" in capsys.readouterr().err


def perplexity(model: NGrams, captions: Sequence[str]) -> float:
    """Perplexity of all tokens together."""
    spoken = ngram_log_probs(model, captions)
    return float((-spoken.logs.sum() / spoken.tokens.sum()).exp())


@pytest.fixture(scope="session")
def words(tmp_path_factory) -> Path:
    """A model that doubts and corrects words."""
    return explain_cases.saved(tmp_path_factory.mktemp("models") / "words")


REGIONS = explain_cases.SCENES


def test_fluency_of_what_is_corrected(words, written, analysed):
    given = "--corrector", words, "--data", REGIONS, "--each", 2
    shown, page, numbers = analysed("fluency", written, *given, data=None)
    [one], model, first = numbers["sets"], load_model(str(words)), {}
    dataset = scenes(REGIONS).split("test")
    for foil in stored(written):
        first.setdefault(foil.text, []).append(foil)
    foils = [foil for some in first.values() for foil in some[:2]]
    better = []
    for image in dict.fromkeys(foil.image for foil in foils):
        own = [foil.foil for foil in foils if foil.image == image]
        said = explain(model, image, own, dataset=dataset)
        better += [x.corrected.text if x.corrected else old for x, old in zip(said, own)]
    assert better != [foil.foil for foil in foils]
    asked = {text for foil in stored(written) for text in (foil.caption, foil.foil)}
    kept = [text for text in scenes(REGIONS).split("train").texts if text not in asked]
    speaks = NGrams.of(text for text in kept if text not in better)
    assert one["corrected"]["captions"] == one["written"]["captions"] == len(foils)
    assert one["corrected"]["whole"]["value"] == pytest.approx(perplexity(speaks, better))
    times = one["corrected"]["typical"]["value"] / one["captions"]["typical"]["value"]
    assert one["corrected"]["times"]["value"] == pytest.approx(times)
    assert "written: corrected" in page
    assert "doubts with 0.5 or more corrected" in shown


def test_cases_of_two_models(models, words, written, analysed):
    names = words, models / "pixels"
    given = "--written", written, "--data", REGIONS, "--count", 2, "--threshold", 0.3
    shown, page, numbers = analysed("cases", *names, *given, "--seed", 5, data=None)
    dataset = scenes(REGIONS).split("test")
    foils = {(foil.image, foil.foil): foil for foil in stored(written)}
    scored = load_model(str(words))
    seen = load_model(str(models / "pixels"))
    member = scored.embed(dataset)
    found = [case for group in numbers["groups"] for case in group["cases"]]
    assert len(found) == len({case["image"] for case in found}) == 6
    assert numbers["models"] == ["words", "pixels"]
    for case in found:
        foil = foils[case["image"], case["written"]["caption"]]
        assert case["caption"] == foil.caption
        corrected = case["written"]["corrected"]
        texts = {"caption": foil.caption, "written": foil.foil}
        texts |= {"corrected": corrected["text"]} if corrected else {}
        row = dataset.image_ids.index(case["image"])
        picture = seen.score(dataset.pictures.open(row), list(texts.values())).tolist()
        [one] = explain(scored, case["image"], [foil.foil], dataset=dataset, threshold=0.3)
        assert case["written"] == json.loads(json.dumps(one.to_dict()))
        encoded = scored.model.encode_texts(scored.processor.process_texts(list(texts.values())))
        pair = Pairs(torch.full((len(texts),), row), torch.arange(len(texts)))
        with torch.inference_mode():
            own = scored.model.score_indices(member.images, encoded, pair).tolist()
        for kind, a, b in zip(texts, own, picture):
            assert case["scores"][kind] == pytest.approx([a, b], abs=1e-4)
        assert (case["scores"]["corrected"] is None) == (corrected is None)
    assert any(case["written"]["corrected"] for case in found)
    assert page.count("data:image/") == 6
    assert "words by" in shown
    assert "seed 5" in shown


def test_cases_are_explained_as_far_as_the_model_reads(models, written, analysed, tmp_path):
    names = explain_cases.saved(tmp_path / "short", longest=8), models / "pixels"
    given = "--written", written, "--data", REGIONS, "--count", 2
    _, page, numbers = analysed("cases", *names, *given, data=None)
    found = [case["written"] for group in numbers["groups"] for case in group["cases"]]
    assert page.count("; explained up to ") == sum(one["unread"] is not None for one in found) > 0


def test_cases_are_those_on_which_models_differ_most(models, words, written, analysed):
    names = models / "pixels", models / "run/online"
    _, page, numbers = analysed("cases", *names, "--written", written, "--count", 1)
    foils = stored(written)
    margins = []
    for name in names:
        scores = picture_scores(load_model(str(name)), foils)
        margins.append(torch.tensor([old - new for new, old in scores], dtype=torch.double))
    a, b = (one / one.std(correction=0) for one in margins)
    gaps = {(foil.image, foil.foil): gap for foil, gap in zip(foils, (b - a).tolist())}
    told = [group["cases"][0] for group in numbers["groups"]]
    best, worst = ((case["image"], case["written"]["caption"]) for case in told[:2])
    assert gaps[best] == pytest.approx(max(gaps.values()), rel=1e-4)
    others = [gap for (image, _), gap in gaps.items() if image != best[0]]
    assert gaps[worst] == pytest.approx(min(others), rel=1e-4)
    assert "what the score gains when a word is left out" in page


@pytest.mark.parametrize(
    "names, said",
    [(("a",), "1 models are given"), (("a", "b", "c"), "3 models are given")],
)
def test_cases_of_another_number_of_models(written, tmp_path, capsys, names, said):
    words = ("--data", "scenes", "--written", written, "--output", tmp_path / "p.html")
    assert run("papers", "analyse", "cases", *names, *words) == 2
    assert said in capsys.readouterr().err
