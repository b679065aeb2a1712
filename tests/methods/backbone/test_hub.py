"""Downloads without a network: one attempt, one line, and files of the cache are still found."""

import socket

import pytest

from ctvr.methods.backbone import hub
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.settings import SettingError


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """The hub is a closed port of this machine, and the cache is empty."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")


def test_weights_that_cannot_be_fetched_are_refused_after_one_attempt(no_network, monkeypatch):
    tried = []
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *given, **more: tried.append(given) or real(*given, **more))
    with pytest.raises(SettingError) as refused:
        load_backbone("RN50-quickgelu", "openai")
    assert len(tried) == 1
    assert 0 < tried[0][1] <= hub.SECONDS
    assert refused.value.settings("backbone") == ["backbone.weights"]
    assert "127.0.0.1 cannot be reached" in refused.value.fault
    assert "`ctvr cache weights RN50-quickgelu openai`" in refused.value.remedy


def test_files_of_the_cache_are_found_without_an_attempt_to_connect(no_network, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(hub, "why_unreachable", lambda: pytest.fail("the cache has the file"))
    assert hub.fetch(lambda: constants.HF_HUB_OFFLINE, "x", "Do it.") is True
    assert constants.HF_HUB_OFFLINE is False


def test_an_error_of_a_library_that_can_connect_is_one_line(monkeypatch):
    def fail():
        raise OSError("404\nfor this address.")

    monkeypatch.setattr(hub, "why_unreachable", lambda: "")
    with pytest.raises(SettingError) as refused:
        hub.fetch(fail, "<weights>=x", "Do it.")
    assert refused.value.args[:2] == ("<weights>=x could not be fetched: 404", "Do it.")


def test_a_hub_that_answers_is_used_and_a_proxy_is_asked_in_its_place(no_network, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert hub.why_unreachable() == ""
        for proxy in ("http://127.0.0.1:9", "127.0.0.1:9", "http://127.0.0.1:port", f"http://{'a' * 70}:1"):
            monkeypatch.setenv("http_proxy", proxy)
            assert "cannot be reached" in hub.why_unreachable(), "the proxy stands in front of the hub"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert hub.why_unreachable() == ""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.why_unreachable() == "HF_HUB_OFFLINE is set"
