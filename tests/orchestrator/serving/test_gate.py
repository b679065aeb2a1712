"""On the loopback interface a request must name this machine; elsewhere, or if a token is set, it needs the token."""

import base64
import os

import pytest

from ctvr.orchestrator.serving import gate
from ctvr.orchestrator.serving.gate import TOKEN, is_loopback, read_token
from tests.orchestrator.serving.client import served
from tests.refusing import refuses

SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:8000", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 400),
        ("evil.example:8000", 400),
        ("127.0.0.1.evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1@evil.example", 400),
        ("192.168.0.7", 400),
        ("0.0.0.0", 400),
        ("[::]", 400),
        ("[::1].evil.example", 400),
        ("[::1]:8000.evil.example", 400),
        ("[::1]@evil.example", 400),
        ("::1", 400),
        ("127.0.0.1:80:90", 400),
        ("localhost:evil", 400),
        ("", 400),
    ],
)
def test_a_page_of_another_site_cannot_ask_through_its_own_name(client, host, status):
    """DNS rebinding: the browser sends the name of the site, whose address has become 127.0.0.1."""
    for path in ("/health", "/search?q=a", "/", "/thumbnail/0", "/nothing"):
        answer = client.get(path, headers={"Host": host})
        assert (answer.status == 400) == (status == 400)
        if status == 400:
            assert answer.json == {"error": "Host: is not this machine. Open the URL that ctvr serve printed."}


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"any:{password}".encode()).decode()


def test_a_token_is_needed_for_everything(snapshot, monkeypatch):
    compared = []
    real = gate.hmac.compare_digest
    monkeypatch.setattr(gate.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    wrong = [
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {SECRET}x",
        SECRET,
        f"Token {SECRET}",
        "Basic !!!",
        basic("x"),
        "Bearer \xe9",
    ]
    with served(lambda: snapshot, SECRET) as client:
        for path in ("/", "/health", "/search?q=a", "/thumbnail/0", "/nothing"):
            for given in wrong:
                answer = client.get(path, headers={"Authorization": given} if given else {})
                assert (answer.status, list(answer.json)) == (401, ["error"])
                assert SECRET not in answer.text
                assert answer.headers["www-authenticate"].startswith("Basic ")
        assert set(compared) == {(32, 32)}, "digests: the time tells neither characters nor length"
        for given in (f"Bearer {SECRET}", f"bearer {SECRET}", basic(SECRET)):
            for host in ("127.0.0.1", "search.example"):  # behind a proxy the name is another
                assert client.get("/health", headers={"Authorization": given, "Host": host}).status == 200


def test_another_host_without_a_token_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv(TOKEN, raising=False)
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert read_token("127.0.0.1", None) == ""
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", ""):
        with refuses("--host"):
            read_token(host, None)
    monkeypatch.setenv(TOKEN, SECRET)
    assert read_token("0.0.0.0", None) == read_token("127.0.0.1", None) == SECRET
    (tmp_path / "token").write_text("another-token-of-mine\n")
    assert read_token("0.0.0.0", tmp_path / "token") == "another-token-of-mine"


def test_a_token_that_is_none_is_refused_and_not_shown(monkeypatch, tmp_path):
    monkeypatch.setenv(TOKEN, "short")
    with refuses("16", "ASCII", "5") as told:
        read_token("127.0.0.1", None)
    assert "short" not in str(told.value)
    for content in (b"", b"two lines of a\ntoken, not one", "schlüssel-schlüssel".encode()):
        (tmp_path / "token").write_bytes(content)
        with refuses("--token-file", "ASCII"):
            read_token("127.0.0.1", tmp_path / "token")
    with refuses("--token-file", tmp_path / "gone"):
        read_token("127.0.0.1", tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    with refuses("--token-file", tmp_path / "pipe", "FIFO"):
        read_token("127.0.0.1", tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with refuses("--token-file", tmp_path / "endless"):
        read_token("127.0.0.1", tmp_path / "endless")
