"""The built wheel installs into an empty environment, and its command line runs there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def run(*words: object, cwd: Path) -> str:
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=env | {"COUNTERFOIL_CACHE": str(cwd / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    options = ("--wheel", "--no-isolation", "--outdir", out)
    run(sys.executable, "-m", "build", *options, ROOT, cwd=out)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    kept = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert kept <= set(names)
    assert "counterfoil/py.typed" in names
    assert all(name.startswith(("counterfoil/", "counterfoil-")) for name in names)
    assert not [name for name in names if "__pycache__" in name]
    data = {path for path in (ROOT / "src" / "counterfoil").rglob("*") if path.is_file()}
    other = {str(p.relative_to(ROOT / "src")) for p in data if p.suffix not in (".py", ".pyc")}
    assert other <= set(names)


@pytest.mark.slow
def test_it_runs_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    bin_ = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    pip = (bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    counterfoil = bin_ / "counterfoil"
    assert "evaluate" in run(counterfoil, "--help", cwd=tmp_path)
    assert "hardest" in run(counterfoil, "plan", "demo", cwd=tmp_path)
    small = ("--set", "*.model.image.width=16", "--set", "*.model.text.width=16")
    data = ("--data", "scenes:images=120,features=regions")
    run(counterfoil, "run", "demo", *data, "--smoke", *small, cwd=tmp_path)
    assert (tmp_path / "runs" / "demo" / "report" / "report.html").is_file()
    shown = run(counterfoil, "evaluate", "runs/demo/hardest", *data, cwd=tmp_path)
    assert "whole split" in " ".join(shown.split())
    where = run(
        bin_ / "python", "-c", "import counterfoil; print(counterfoil.__file__)", cwd=tmp_path
    )
    assert str(tmp_path / "env") in where


def test_the_oldest_versions_allowed_are_those_of_the_smoke_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + [
        line
        for name in ("hf", "web", "index", "tune", "uniter", "stem", "test")
        for line in extras[name]
    ]
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints-minimum.txt").read_text().split()
    )
    for requirement in map(Requirement, lines):
        name = requirement.name.lower().replace("_", "-")
        if name == "torch":  # the build of constraints.txt; older ones run on GPU machines
            continue
        (floor,) = requirement.specifier
        assert floor.operator == ">="
        assert Requirement(f"{name}=={floor.version}").specifier.contains(pinned[name]) or (
            pinned[name].startswith(f"{floor.version}.")
        ), (name, str(floor), pinned[name])
