"""How the page is used in a browser."""

from __future__ import annotations

import base64
from typing import Any

from browser_cases import elsewhere

SHOWN = "#answer:not([hidden])"
READ = (
    ".word, ins, legend, .rank, .score, .quiet, td, th, small, button, label, input, .label, "
    ".name, [role]"
)
DROP = """([name, kind, coded]) => {
  const bytes = Uint8Array.from(atob(coded), sign => sign.charCodeAt(0));
  const moved = new DataTransfer();
  moved.items.add(new File([bytes], name, { type: kind }));
  for (const what of ['dragenter', 'dragover', 'drop'])
    document.body.dispatchEvent(
      new DragEvent(what, { dataTransfer: moved, bubbles: true, cancelable: true }));
}"""
LOOKS = [(scheme, width) for scheme in ("light", "dark") for width in (400, 1100)]


def until(page: Any, code: str) -> None:
    """Wait; playwright's own way needs eval, which the page's policy forbids."""
    for _ in range(600):
        if page.evaluate(code):
            return
        page.wait_for_timeout(100)
    raise AssertionError(code)


def search(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")
    until(page, "document.querySelector('#told').textContent.includes('for')")


def drop(page: Any, name: str, kind: str, body: bytes) -> None:
    page.evaluate(DROP, [name, kind, base64.b64encode(body).decode()])


def clean(page: Any, where: str) -> None:
    """Nothing was asked elsewhere, and nothing complained of."""
    assert elsewhere(page.asked, where, "blob:") == []
    assert page.wrong == []
