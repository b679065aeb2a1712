"""The service answers as `ctvr search` does, shows only videos of the gallery, and refuses the rest in one line."""

import base64
import hashlib
import io
import os
import re
import shutil
import socket
from html import unescape
from html.parser import HTMLParser

import pytest
from PIL import Image

from ctvr.orchestrator.jobs.query import hits_text
from ctvr.orchestrator.pages.contact_sheet import contact_sheet
from ctvr.orchestrator.pages.html import write_page
from ctvr.orchestrator.retrieval.model import Block, Model
from ctvr.orchestrator.serving.snapshot import Snapshot, video_id
from ctvr.orchestrator.streams.stream import Item
from ctvr.orchestrator.video.thumbnails import SIZE, WIDTH
from tests.orchestrator.serving.client import served


def test_answers_are_those_of_the_model(client, snapshot):
    answer = client.get("/search", q="a red circle", k=4)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["query"] == "a red circle"
    hits = snapshot.model.search("a red circle", 4)
    assert [(hit["rank"], hit["video"], hit["category"], hit["seconds"]) for hit in answer.json["hits"]] == [
        (hit.rank, hit.video, hit.category, None) for hit in hits
    ]
    assert [hit["score"] for hit in answer.json["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-6)
    assert {hit["category"] for hit in answer.json["hits"]} <= {"red", "green"}
    assert len(client.get("/search", q="a star").json["hits"]) == min(10, len(snapshot.videos))
    assert client.get("/health").json == {"status": "ok", "model": snapshot.about, "videos": len(snapshot.videos)}
    assert "/videos/" not in answer.text, "no path of the file system"


def test_a_thumbnail_is_a_picture_of_a_video_of_the_gallery(client, tmp_path):
    address = client.get("/search", q="a red circle", k=1).json["hits"][0]["thumbnail"]
    answer = client.get(address)
    assert (answer.status, answer.headers["content-type"]) == (200, "image/jpeg")
    assert Image.open(io.BytesIO(answer.body)).size == (WIDTH, SIZE)
    assert client.get(address).body == answer.body
    (tmp_path / "secret.mp4").write_bytes(b"no video")
    for asked in (
        "0" * 20,
        f"..%2f..%2f{tmp_path.name}%2fsecret.mp4",
        "../../etc/passwd",
        str(tmp_path / "secret.mp4"),
    ):
        refused = client.get(f"/thumbnail/{asked}")
        assert refused.status == 404
        assert list(refused.json) == ["error"]


def test_a_video_that_is_not_here_or_broken_has_no_thumbnail(snapshot, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    (block,) = snapshot.model.gallery()[:1]
    items = Item("gone", "", (0.5, 1.5), "", ()), Item("broken", str(tmp_path / "broken.mp4"), None, "", ())
    other = Model("other", snapshot.model.trained, snapshot.model.store)
    other.set_gallery([Block(items, block.features[:2], None, "mine")])
    with served(lambda: Snapshot(other, "other")) as client:
        found = client.get("/search", q="a red circle").json["hits"]
        assert {hit["video"]: hit["seconds"] for hit in found} == {"gone": [0.5, 1.5], "broken": None}
        for hit in found:
            refused = client.get(hit["thumbnail"])
            assert (refused.status, refused.json) == (
                404,
                {"error": "thumbnail: the file of this video is missing or cannot be read."},
            )


def test_any_name_of_a_file_is_found_and_shown_as_text(snapshot, tmp_path):
    (block,) = snapshot.model.gallery()[:1]
    (tmp_path / "videos").mkdir()
    names = [b"a\xff", b"a\xfe", b"\x1b]0;x\x07", b"a\n  1  0.9  b", "\u202egnp".encode()]
    for name in names:
        shutil.copy(block.items[0].path, os.fsencode(tmp_path / "videos") + b"/" + name + b".mp4")
    other = Model("other", snapshot.model.trained, snapshot.model.store)
    other.set_gallery([other.encode_gallery(tmp_path / "videos")])
    with served(lambda: Snapshot(other, "a\udcff\u202e")) as client:
        answer = client.get("/search", q="a red circle")
        found = answer.json["hits"]
        assert len({hit["video"] for hit in found}) == len({hit["thumbnail"] for hit in found}) == len(names)
        assert {client.get(hit["thumbnail"]).status for hit in found} == {200}
        page = client.get("/", q="a red circle")
        assert page.status == 200
    hits = other.search("a red circle", 5)
    sheet = write_page(tmp_path / "sheet.html", contact_sheet([("a", hits)], "m")).read_text(encoding="utf-8")
    line_of_each = hits_text("a", hits)
    assert len(line_of_each.splitlines()) == 1 + len(names)
    for text in (answer.text, page.text, sheet, line_of_each):
        assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text) is None


def test_the_first_page_offers_queries_that_find_their_video(client, snapshot):
    page = client.get("/").text
    links = re.findall(r'href="(/\?q=[^"]+)"><img src="/thumbnail/(\w+)"', page)
    assert [video for _, video in links] == [video for _, video in snapshot.examples]
    assert links
    assert len({snapshot.videos[video].category for _, video in links[:2]}) == 2
    for address, video in links:
        asked, found = client.get(unescape(address)).text, snapshot.videos[video]
        assert f"/thumbnail/{video}" in asked
        assert any(caption in unescape(asked) for caption in found.captions)
    assert "Try one of these" not in client.get("/", q="a star").text


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        (
            "/search",
            422,
            "q: must be a text of at most 1000 characters. Use for example: /search?q=a+red+square&k=10",
        ),
        ("/search?q=%20", 422, "search: "),
        ("/search?q=" + "a" * 1001, 422, "q: must be a text of at most 1000 characters"),
        ("/search?q=a&k=0", 422, "k: must be a whole number from 1 to 100"),
        ("/search?q=a&k=101", 422, "k: must be a whole number from 1 to 100"),
        ("/search?q=a&k=nan", 422, "k: must be a whole number from 1 to 100"),
        ("/?q=a&k=1.5", 422, "k: must be a whole number from 1 to 100"),
        ("/docs", 404, "no such path. Use /, /search, /health or /thumbnail/ID."),
        ("/openapi.json", 404, "no such path."),
        ("/thumbnail/", 404, "no such path."),
    ],
)
def test_a_bad_request_is_one_line(client, path, status, message):
    answer = client.get(path)
    assert answer.status == status
    assert answer.json["error"].startswith(message)
    assert "\n" not in answer.json["error"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "text", ["\x00", "\ud800".encode("utf-8", "surrogatepass"), "e\u0301 \U0001f600 " * 50, "<|startoftext|>"]
)
def test_odd_texts_are_read_as_texts(client, text):
    assert client.get("/search", q=text).status in (200, 422)
    assert client.get("/", q=text).status in (200, 422)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_service_refuses_every_method_except_get(client, method):
    for path in ("/search?q=a", "/", "/health"):
        answer = client.get(path, method)
        assert (answer.status, answer.json) == (405, {"error": "this service only reads. Use GET."})


def test_head_has_the_headers_alone(client):
    answer = client.get("/search", "HEAD", q="a red circle")
    assert (answer.status, answer.body) == (200, b"")


def test_a_fault_is_reported_without_its_traceback(snapshot, monkeypatch):
    def fail(query: str, k: int) -> None:
        raise RuntimeError("/home/secret")

    broken = Snapshot(snapshot.model, "broken")
    object.__setattr__(broken, "search", fail)
    with served(lambda: broken) as client:
        answer = client.get("/search", q="a")
        assert (answer.status, answer.json) == (500, {"error": "the service failed. Its terminal shows the cause."})
        assert client.get("/health").status == 200


def test_what_is_no_http_is_refused_and_the_next_request_answered(client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert client.get("/health").status == 200


class Page(HTMLParser):
    """The elements of a page with their attributes, and the data that a form sends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unlabelled: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "input" and "label" not in self.open:
            self.unlabelled.append(str(attrs))
        if tag not in ("input", "img", "meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> ends another element"

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_is_a_form_and_pictures_and_needs_nothing_else(client, snapshot):
    empty, answer = client.get("/"), client.get("/", q="a <b>'red'</b> \"circle\"", k=3)
    assert (empty.status, answer.status) == (200, 200)
    before, page = Page(empty.text), Page(answer.text)
    assert [len(each.all("img")) for each in (before, page)] == [len(snapshot.examples), 3]
    assert "<b>'red'" not in answer.text
    assert "<on>" not in answer.text
    field, count = (each for each in page.all("input") if "name" in each)
    assert (field["value"], count["value"]) == ("a <b>'red'</b> \"circle\"", "3")
    for each in (before, page):
        assert each.open == []
        assert each.unlabelled == []
        assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in each.found}
        assert not [a for _, a in each.found if any(name.startswith("on") or name == "style" for name in a)]
        assert [tag for tag, _ in each.found if tag in ("main", "h1", "form")] == ["main", "h1", "form"]
        assert each.all("html") == [{"lang": "en"}]
    assert [each["autofocus"] for each in before.all("input") if "autofocus" in each] == [None], "type at once"
    assert not [each for each in page.all("input") if "autofocus" in each], "a reader begins at the top"
    ids = {video_id(hit.task, hit.video, hit.segment) for hit in snapshot.search("a <b>'red'</b> \"circle\"", 3)}
    assert {image["src"] for image in page.all("img")} == {f"/thumbnail/{each}" for each in ids}
    assert not re.search(r"https?://|url\(|@import", answer.text)


def test_the_page_permits_its_own_style_and_pictures_alone(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert client.get("/search", q="a").headers["content-security-policy"].startswith("default-src 'none';")
