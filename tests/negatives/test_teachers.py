"""Three forms of teachers, one guide."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import processes
from artifact_cases import resealed
from counterfoil.core.artifact import MANIFEST
from counterfoil.core.config import lazy
from counterfoil.core.resumable import WorkStopped, partial_folder
from counterfoil.core.types import Role
from counterfoil.losses.base import weighted_sum
from counterfoil.losses.ndgl import HardNegativeRectificationLoss, MarginDistillationLoss
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.negatives.teachers import (
    TARGETS,
    TargetStore,
    target_weighting,
    write_targets,
)
from counterfoil.scoring.embedding_store import ModelSource
from counterfoil.training.step import TrainingStep
from sources_cases import Drawn
from teachers_cases import TEXTS, expected, frozen, stored, trained
from train_cases import Offline, batch_of, gradients, host, processor

KINDS = {
    "global": ("global", "global", "global"),
    "bag": ("bag", "bag"),
    "mixed": ("global", "bag"),
}
LENS = processor()


def close(found, other, atol=1e-5):
    torch.testing.assert_close(found, other, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_all_forms_agree_with_a_loop_over_pairs(tmp_path, kind):
    models, batch = trained(KINDS[kind], LENS), batch_of(LENS, TEXTS)
    each = expected(models, (batch.image_rows, batch.text_rows))
    mean = sum(s / one.model.score_scale for s, one in zip(each, models)) / len(models)
    for name, guide in forms(tmp_path, models).items():
        assert guide.gives.targets
        close(guide.targets(batch), 3 * mean, 1e-5 if name != "fp16" else 2e-2)


def forms(folder, models, scale=3.0):
    return {
        "stored": stored(folder / "a", models, scale=scale),
        "fragments": stored(folder / "b", models, scale=scale, vectors=False),
        "fp16": stored(folder / "c", models, scale=scale, precision="fp16"),
        "clean": frozen(folder / "d", models, scale=scale),
        "same": frozen(folder / "e", models, scale=scale, inputs="same"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_pairs_are_guided_alike(tmp_path, kind):
    models, batch = trained(KINDS[kind], LENS), batch_of(LENS, TEXTS, offline=True)
    each = expected(models, (batch.image_rows, batch.text_rows))
    mean = sum(s / one.model.score_scale for s, one in zip(each, models)) / len(models)
    for name, guide in forms(tmp_path, models, scale=1.0).items():
        block = guide.targets(batch)
        close(block, mean[: batch.block[0], : batch.block[1]], 1e-5 if name != "fp16" else 1e-2)
        for role in (Role.HARD_TEXT, Role.HARD_IMAGE):
            pairs = batch.pairs[role]
            found = guide.pair_targets(batch, pairs)
            close(found, mean[pairs.image, pairs.text], 1e-5 if name != "fp16" else 1e-2)


def test_guides_know_one_batch_from_the_next(tmp_path):
    models = trained(("bag",), LENS)
    guide = frozen(tmp_path / "a", models)
    for texts in (TEXTS, TEXTS[3:], TEXTS[:4]):
        batch = batch_of(LENS, texts)
        close(guide.targets(batch), expected(models, (batch.image_rows, batch.text_rows))[0] / 2)


def test_teachers_are_frozen(tmp_path):
    models = trained(("bag",), LENS)
    guide = frozen(tmp_path / "a", models)
    target = guide.targets(batch_of(LENS, TEXTS))
    assert not target.requires_grad
    assert not models[0].model.training


def test_teachers_are_no_part_of_the_step(tmp_path):
    guide = frozen(tmp_path / "a", trained(("global",), LENS))
    step = guided_step(guide)
    assert {name.split(".")[0] for name in step.state_dict()} == {"model"}
    before = {name: value.clone() for name, value in guide.teachers[0].model.state_dict().items()}
    torch.stack(list(step(batch_of(LENS, TEXTS)).values())).sum().backward()
    assert gradients(step)
    for name, value in guide.teachers[0].model.state_dict().items():
        assert torch.equal(value, before[name])


def test_half_precision_of_the_student_leaves_teachers_alone(tmp_path):
    guide, batch = stored(tmp_path / "a", trained(("global",), LENS)), batch_of(LENS, TEXTS)
    plain = guide.targets(batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(guide.targets(batch), plain)


def test_standardised_teachers_have_one_mean_and_deviation(tmp_path):
    models = trained(("global", "bag"), LENS)
    manifest = write_targets(tmp_path / "m", models, form="models")
    weights = target_weighting(manifest.teachers, 1.0, standardise=True)
    means = {round(t.mean * w * 2 + m * 2, 6) for t, (w, m) in zip(manifest.teachers, weights)}
    deviations = {round(t.deviation * w * 2, 6) for t, (w, _) in zip(manifest.teachers, weights)}
    assert len(means) == len(deviations) == 1
    assert means == {round(sum(t.mean / t.scale for t in manifest.teachers) / 2, 6)}
    batch = batch_of(LENS, TEXTS)
    both = [
        make(tmp_path / name, models, standardise=True).targets(batch)
        for name, make in (("a", stored), ("b", frozen))
    ]
    close(*both)
    assert (both[0] - stored(tmp_path / "c", models).targets(batch)).abs().max() > 1e-3


def test_teachers_of_one_kind_are_hardly_moved_by_standardising(tmp_path):
    models, batch = trained(("global",), LENS), batch_of(LENS, TEXTS)
    plain = stored(tmp_path / "a", models).targets(batch)
    close(stored(tmp_path / "b", models, standardise=True).targets(batch), plain)


def test_the_manifest_says_who_they_are(tmp_path):
    models = trained(("global", "bag"), LENS)
    manifest = write_targets(tmp_path / "a", models)
    assert manifest == TARGETS.read_manifest(tmp_path / "a")
    assert [taught.plain for taught in manifest.teachers] == [True, False]
    assert [taught.scale for taught in manifest.teachers] == [1.0, 2.0]
    assert manifest.corpus == LENS.dataset.fingerprint
    assert not partial_folder(tmp_path / "a").exists()
    assert not list((tmp_path / "a").rglob(".*"))


def test_a_score_that_only_looks_like_one_vector_is_not_plain(tmp_path):
    models = trained(("global",), LENS)
    grid = type(models[0].model).score_matrix
    models[0].model.score_matrix = lambda images, texts: grid(models[0].model, images, texts).exp()
    assert not write_targets(tmp_path / "a", models, form="models").teachers[0].plain


def guided_step(guide, *drawn, kind="global"):
    objective = weighted_sum(
        triplet=lazy(HardestTripletLoss),
        margins=(100.0, lazy(MarginDistillationLoss, offline=bool(drawn))),
        rectified=(0.5, lazy(HardNegativeRectificationLoss)),
    ).build()
    return TrainingStep(host(kind, LENS, seed=9), objective, sources=[guide, *drawn])


def losses(folder, kinds, form, offline):
    """Losses and gradients of a guided step on this process."""
    models = trained(kinds, LENS)
    made = frozen(folder, models, inputs=form) if form != "stored" else stored(folder, models)
    drawn = [Drawn(Offline.provides)] if offline else []
    step = guided_step(made, *drawn)
    found = step(batch_of(LENS, TEXTS, offline=offline))
    torch.stack(list(found.values())).sum().backward()
    plain = {name: loss.item() for name, loss in found.items()}
    return plain, {name: grad.numpy() for name, grad in gradients(step).items()}


@pytest.mark.parametrize(
    ("kinds", "form", "offline"),
    [
        (("global", "global"), "stored", True),
        (("bag", "global"), "stored", False),
        (("bag", "global"), "clean", True),
        (("global", "global"), "clean", False),
        (("bag", "global"), "same", True),
    ],
    ids=str,
)
def test_two_processes_judge_as_one(tmp_path, kinds, form, offline):
    alone, _ = losses(tmp_path / "one", kinds, form, offline)
    for plain, _ in processes.run(losses, 2, tmp_path / "two", kinds, form, offline):
        assert plain == pytest.approx(alone, abs=1e-4)


def test_two_processes_write_the_same_store(tmp_path):
    def writing(folder):
        write_targets(folder, trained(("bag", "global"), LENS))

    writing(tmp_path / "one")
    processes.run(writing, 2, tmp_path / "two")
    files = [p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*") if p.is_file()]
    assert len(files) > 20
    for name in files:
        if name.suffix in (".f32",):
            one, two = (
                torch.frombuffer(
                    bytearray((tmp_path / n / name).read_bytes() or b"\0" * 4), dtype=torch.float32
                )
                for n in ("one", "two")
            )
            torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
        elif name.name != MANIFEST:
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_writing_that_was_stopped_goes_on(tmp_path, after):
    models, asked = trained(("bag", "global"), LENS), []

    def stop() -> bool:
        asked.append(None)
        return len(asked) == after

    with pytest.raises(WorkStopped):
        write_targets(tmp_path / "a", models, stop=stop)
    assert not (tmp_path / "a").exists()
    write_targets(tmp_path / "a", models)
    write_targets(tmp_path / "b", models)
    for path in (tmp_path / "b").rglob("*"):
        if path.is_file():
            other = tmp_path / "a" / path.relative_to(tmp_path / "b")
            assert other.read_bytes() == path.read_bytes()


def test_another_machine_goes_on_with_what_was_measured_first(tmp_path):
    models = trained(("bag", "global"), LENS)
    with pytest.raises(WorkStopped):
        write_targets(tmp_path / "a", models, stop=lambda: True)
    path = partial_folder(tmp_path / "a") / MANIFEST
    plain = json.loads(path.read_text())
    plain["teachers"][0]["mean"] += 1e-7
    path.write_text(json.dumps({**plain, "version": "0"}))
    resealed(path.parent)
    begun = TARGETS.read_manifest(partial_folder(tmp_path / "a"))
    assert write_targets(tmp_path / "a", models) == begun == TARGETS.read_manifest(tmp_path / "a")
    assert write_targets(tmp_path / "a", models) == begun


def test_what_was_begun_for_others_is_refused(tmp_path):
    with pytest.raises(WorkStopped):
        write_targets(tmp_path / "a", trained(("bag",), LENS), stop=lambda: True)
    with pytest.raises(ValueError, match="is of other teachers or data; delete it"):
        write_targets(tmp_path / "a", trained(("global",), LENS))


def test_models_that_have_moved_are_asked_on(tmp_path):
    models = trained(("bag",), LENS)
    here, moved = (
        [replace(models[0], source=replaced(models[0].source, model=name, identity="same"))]
        for name in ("name='here'", "name='moved'")
    )
    with pytest.raises(WorkStopped):
        write_targets(tmp_path / "a", here, stop=lambda: True)
    write_targets(tmp_path / "a", moved)
    bent = [replace(models[0], source=replaced(models[0].source, identity="bent"))]
    store = TargetStore.open(tmp_path / "a", fingerprint=LENS.dataset.fingerprint)
    store.check(0, moved[0].source, tmp_path / "a")
    with pytest.raises(ValueError, match="had the weights of the model, but read or used them"):
        store.check(0, bent[0].source, tmp_path / "a")


def replaced(source: ModelSource, **more: str) -> ModelSource:
    return source.model_copy(update=more)


def test_another_corpus_is_refused(tmp_path):
    write_targets(tmp_path / "a", trained(("global",), LENS))
    other = processor(seed=1).dataset.fingerprint
    with pytest.raises(ValueError, match=f"was taught on corpus .* but this one is {other}"):
        TargetStore.open(tmp_path / "a", fingerprint=other)


def test_other_weights_are_refused(tmp_path):
    write_targets(tmp_path / "a", trained(("global",), LENS))
    store = TargetStore.open(tmp_path / "a", fingerprint=LENS.dataset.fingerprint)
    with pytest.raises(ValueError, match=r"had the weights .* but the model has 1234"):
        store.check(0, ModelSource(matcher="global", checkpoint="1234"), tmp_path / "a")


def test_a_manifest_without_teachers_is_refused(tmp_path):
    write_targets(tmp_path / "a", trained(("global",), LENS), form="models")
    path = tmp_path / "a" / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "teachers": []}))
    with pytest.raises(ValueError, match="is damaged: teachers: "):
        TARGETS.read_manifest(tmp_path / "a")
