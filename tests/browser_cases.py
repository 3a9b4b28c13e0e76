"""What is asked of a page in a browser: how readable it is, and whether it needs anything else."""

from __future__ import annotations

from typing import Any

_CONTRAST = """named => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  return [...document.querySelectorAll(named)]
    .filter(node => node.checkVisibility() && !node.closest('.aside')).map(node => {
    let stack = [], at = node;
    while (at) { stack.push(parts(getComputedStyle(at).backgroundColor)); at = at.parentElement; }
    const ground = stack.reverse().reduce((under, [r, g, b, a = 1]) =>
      under.map((v, i) => v * (1 - a) + [r, g, b][i] * a), [255, 255, 255]);
    const both = [light(ground), light(parts(getComputedStyle(node).color))];
    const [a, b] = both.sort((a, b) => a - b);
    return [(b + .05) / (a + .05), node.outerHTML.slice(0, 80)];
  });
}"""


def least_contrast(page: Any, named: str) -> tuple[float, str]:
    """The least contrast of a text that is seen with what is behind it, by WCAG, and where."""
    found = [(ratio, node) for ratio, node in page.evaluate(_CONTRAST, named)]
    assert found, f"nothing is seen of {named}"
    return min(found)


def elsewhere(asked: list[str], *own: str) -> list[str]:
    """Of the addresses that a page asked for, those that are not its own."""
    return [url for url in asked if not url.startswith((*own, "data:"))]
