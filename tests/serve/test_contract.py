"""The schema that the server publishes, as schemathesis reads it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from serve_cases import running, with_columns

# 413 and 415: the schema cannot say what a picture is; 422: what this index or model cannot answer
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "413", "415", "422", "5xx"]
"""


@pytest.mark.slow
def test_schemathesis_finds_no_failure(tmp_path):
    if find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    root = with_columns(tmp_path)
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with running(root / "index") as (where, _):
        command = Path(sys.executable).parent / "schemathesis", "run", f"{where}openapi.json"
        limits = "--max-examples", "15", "--seed", "1", "--request-timeout", "30"
        run = subprocess.run(
            [*command, *limits], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
    assert run.returncode == 0, run.stdout[-6000:]
    assert "10 selected / 10 total" in run.stdout
