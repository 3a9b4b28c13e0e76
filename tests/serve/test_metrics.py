from __future__ import annotations

import re

import pytest

from counterfoil.serve.metrics import LATEST, Metrics, Told, quantile

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[\d.e+]+')


def test_the_text_is_that_of_prometheus():
    metrics = Metrics()
    for status in (200, 200, 404):
        metrics.note("/search", status, 0.25)
    metrics.note("/health", 200, 0.5)
    text = metrics.text((Told("images", "gauge", "Images.", 30_000),))
    lines = text.splitlines()
    assert text.endswith("\n")
    assert all(line.startswith(("# HELP ", "# TYPE ")) or LINE.fullmatch(line) for line in lines)
    assert 'counterfoil_requests_total{route="/search",status="200"} 2' in lines
    assert 'counterfoil_requests_total{route="/search",status="404"} 1' in lines
    assert 'counterfoil_request_seconds_count{route="/search"} 3' in lines
    assert 'counterfoil_request_seconds_sum{route="/search"} 0.750000' in lines
    assert 'counterfoil_request_seconds{route="/health",quantile="0.99"} 0.500000' in lines
    assert "counterfoil_images 30000" in lines
    assert "# TYPE counterfoil_images gauge" in lines
    named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(named) == len(set(named)) == 3


def test_quantiles_are_of_the_latest():
    metrics = Metrics()
    for _ in range(LATEST):
        metrics.note("/", 200, 9.0)
    for _ in range(LATEST):
        metrics.note("/", 200, 1.0)
    assert 'quantile="0.99"} 1.000000' in metrics.text()


@pytest.mark.parametrize(
    "share, value", [(0.0, 1), (0.01, 1), (0.5, 50), (0.505, 51), (0.99, 99), (1.0, 100)]
)
def test_quantile(share, value):
    assert quantile(list(range(100, 0, -1)), share) == value
