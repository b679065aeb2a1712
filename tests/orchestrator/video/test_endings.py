"""Videos of a folder: selected by their endings, without hidden files; unreadable folders are reported."""

import os

from ctvr.orchestrator.video import endings
from ctvr.orchestrator.video.endings import find_videos


def test_folder_search_is_recursive_and_skips_hidden_files(tmp_path):
    for name in ("b.MP4", "a.mkv", "below/deep/c.mts", "._a.mkv", ".AppleDouble/a.mkv", ".git/x.mp4", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    os.symlink(tmp_path, tmp_path / "below" / "circle")
    os.symlink("nowhere", tmp_path / "link.avi")
    found = find_videos(tmp_path)
    assert [str(file.relative_to(tmp_path)) for file in found.videos] == [
        *("a.mkv", "b.MP4", "below/deep/c.mts", "link.avi")
    ]
    assert (found.others, found.unreadable) == (1, [])


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path, monkeypatch):
    """A user with all rights can list every folder, so the system's answer is simulated."""
    for name in ("good/a.mp4", "locked/b.mp4"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    scan = os.scandir

    def refusing(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(endings.os, "scandir", refusing)
    found = find_videos(tmp_path)
    assert [file.name for file in found.videos] == ["a.mp4"]
    assert [error.filename for error in found.unreadable] == [str(tmp_path / "locked")]
