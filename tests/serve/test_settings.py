from __future__ import annotations

import pytest

from counterfoil.serve.settings import ServerSettings


def test_loopback_is_the_default():
    assert ServerSettings().local
    assert ServerSettings(host="localhost").local
    assert not ServerSettings(host="0.0.0.0").local


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_does_not_exist_is_refused(port):
    with pytest.raises(ValueError, match=f"port {port} does not exist"):
        ServerSettings(port=port)


@pytest.mark.parametrize("key", ["", "  ", "clé", "secret\n", " secret", "se\ncret", "sec\tret"])
def test_key_must_fit_into_a_header(key):
    with pytest.raises(ValueError, match="API key is empty, begins or ends with a blank, or"):
        ServerSettings(key=key)


@pytest.mark.parametrize("key", ["k", "open sesame", "~!"])
def test_a_key_may_have_blanks_inside(key):
    assert ServerSettings(key=key).key == key
