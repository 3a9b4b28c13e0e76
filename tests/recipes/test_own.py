"""Recipes for a user's own data."""

from __future__ import annotations

import pytest

from counterfoil.cli import main
from counterfoil.recipes import members, modern, ndgl, own
from counterfoil.recipes.measures import Evaluate
from counterfoil.recipes.recipe import Teach, Train
from counterfoil.recipes.run import Source, execute
from counterfoil.recipes.settings import apply

SMALL = ("*.model.image.width=16", "*.model.text.width=16", "*.epochs=1", "*.steps=3", "*.batch=16")


@pytest.mark.parametrize("pixels,sees", [(True, "pixels"), (False, "features")])
def test_every_host_reads_what_there_is(pixels, sees):
    for host in own.known("scenes" if pixels else "flickr8k"):
        recipe = own.recipe(host, pixels=pixels)
        trained = [stage for stage in recipe.stages if isinstance(stage, Train)]
        assert {stage.lens.images for stage in trained} == {sees}
        tests = [stage for stage in recipe.stages if isinstance(stage, Evaluate)]
        assert {stage.protocol for stage in tests} == {"whole"}
        assert len(trained) == (ndgl.K + 1 if host.startswith("ndgl/") else 1)


def test_hosts_that_need_no_download_are_known():
    known = own.known("scenes")
    assert set(members.HOSTS) < set(known)
    assert {"gpo", "chan", "esa", "hrem", "dive", "ndgl/gpo", "ndgl/vsrn"} < set(known)
    assert not any("bert" in name for name in known)
    assert len(known) == len(set(known))


def test_unknown_hosts_are_told_the_nearest():
    for name, near in (("vseep", "vsepp"), ("chna", "chan"), ("ndgl/gpoo", "ndgl/gpo")):
        with pytest.raises(ValueError, match=f"did you mean '{near}'"):
            own.recipe(name, pixels=True)
    assert any("bert" in host for host in modern.HOSTS)
    with pytest.raises(ValueError, match="'gpo-bert' is not a model to train"):
        own.recipe("gpo-bert", pixels=True)


def test_saved_models_take_the_place_of_teachers():
    recipe = own.recipe("ndgl/chan", pixels=True, teachers=["runs/a", "runs/b"])
    taught = recipe.stage("targets")
    assert isinstance(taught, Teach)
    assert (taught.using, taught.models) == ((), ("runs/a", "runs/b"))
    assert [stage.name for stage in recipe.stages] == ["targets", "student", "test-student"]
    usual = own.recipe("ndgl/chan", pixels=True)
    assert recipe.stage("student") == usual.stage("student")
    with pytest.raises(ValueError, match="'chan' learns from no teachers; name 'ndgl/chan'"):
        own.recipe("chan", pixels=True, teachers=["runs/a"])


def test_a_model_teaches_another_kind_by_the_command_line(tmp_path, capsys):
    first = apply(own.recipe("vsepp", pixels=True), SMALL)
    assert execute(first, Source("scenes:images=36"), tmp_path / "a")
    capsys.readouterr()
    settings = [word for setting in SMALL for word in ("--set", setting)]
    command = ["train", "ndgl/gpo", "--data", "scenes:images=36", "--folder", str(tmp_path / "b")]
    assert main([*command, "--teacher", str(tmp_path / "a" / "online"), *settings]) == 0
    assert "targets: 1 teacher, stored for" in capsys.readouterr().out
    assert (tmp_path / "b" / "student" / "model" / "model.json").is_file()
    assert main([*command, *settings]) == 2
    assert "was made with other settings" in capsys.readouterr().err
