from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from counterfoil.training.logging import (
    MetricsLog,
    MetricWindow,
    check_trackers,
    memory_mb,
    read_metrics,
)


def test_lines_are_appended_after_what_stands(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsLog(path) as metrics:
        metrics.write(1, {"loss": 0.5})
        kept = metrics.bytes
        metrics.write(2, {"loss": 0.25})
        metrics.write(3, {"warning": "stuck – étroit"})
    assert path.stat().st_size == metrics.bytes
    with MetricsLog(path, keep=kept) as metrics:
        metrics.write(2, {"loss": 0.75})
    assert read_metrics(path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.75}]


def test_a_file_that_has_become_shorter(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, keep=500) as metrics:
        metrics.write(4, {"loss": 1.0})
    assert read_metrics(path) == [{"step": 4, "loss": 1.0}]


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1}) + '\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1}]
    path.write_text('{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_metrics(path)
    path.write_text('[1]\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 1 holds no step"):
        read_metrics(path)
    with pytest.raises(ValueError, match="does not exist; train first"):
        read_metrics(tmp_path / "none.jsonl")


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with MetricsLog(tmp_path / "metrics.jsonl", track=("tensorboard",)) as metrics:
        metrics.write(1, {"loss": 0.5, "warning": "text is left out"})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5)]


@pytest.mark.parametrize("track", ["wandb", "tensorboard"])
def test_a_tracker_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, track: str) -> None:
    monkeypatch.setitem(sys.modules, track, None)
    with pytest.raises(ValueError, match=rf'needs {track}.*: pip install "counterfoil\[log\]"'):
        check_trackers((track,))


def test_windows() -> None:
    window = MetricWindow()
    window.add({"loss": torch.tensor(1.0)}, 8)
    saved, steps = window.sums(), window.steps
    window.add({"loss": torch.tensor(2.0), "late": torch.tensor(4.0)}, 8)
    later, counts = window.sums(), window.counts()
    assert counts == {"late": 1}
    assert window.take() == ({"loss": 1.5, "late": 4.0}, 16)
    assert window.take() == ({}, 0)
    again = MetricWindow()
    again.restore(saved, steps)
    again.add({"loss": torch.tensor(2.0)}, 8)
    assert again.take() == ({"loss": 1.5}, 8)
    again.restore(later, 2, counts)
    again.add({"late": torch.tensor(8.0)}, 8)
    assert again.take() == ({"loss": 1.5, "late": 6.0}, 8)


def test_memory_is_in_megabytes() -> None:
    assert 10 < memory_mb(torch.device("cpu")) < 1e6


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    run = SimpleNamespace(
        log=lambda line, step: calls.append((line, step)), finish=lambda: calls.append("end")
    )

    def init(**settings: object) -> object:
        calls.append(settings["name"])
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    with MetricsLog(tmp_path / "vse" / "metrics.jsonl", track=("wandb",), step=3) as metrics:
        metrics.write(4, {"loss": 0.5})
    assert calls == ["vse from step 3", ({"loss": 0.5}, 4), "end"]
