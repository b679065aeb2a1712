"""Videos without IDs get the shortest unique one: stem, path, or stem and digest."""

import pytest

from ctvr.orchestrator.importers.shards import File, name_videos


def ids(*names: str, taken: tuple[str, ...] = ()) -> list[str]:
    """Return the IDs of videos of these names, whose files are named by digests: 0000..., 1111..., 2222..."""
    files = [File(f"{str(n) * 64}.mp4", name) for n, name in enumerate(names)]
    found = name_videos(files, taken)
    return [found[file] for file in files]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["a.mp4", "b/c.mp4"], ["a", "c"]),
        (["cls1/1.mp4", "cls2/1.mp4", "cls2/2.mp4"], ["cls1/1", "cls2/1", "2"]),
        (["train/x/1.mp4", "train/y/1.mp4"], ["x/1", "y/1"]),  # the folder of their only split
        (["train/x/1.mp4", "test/x/1.mp4"], ["train/x/1", "test/x/1"]),
        (["a.mp4", "a.webm"], ["a.mp4", "a.webm"]),
        (["x/1.mp4", "x/1.mp4"], ["1-00000000", "1-11111111"]),
        (["C:\\x\\c1\\a.mp4", "C:\\x\\c2\\a.mp4"], ["x/c1/a", "x/c2/a"]),
        (["/c1/a.mp4", "/c2/a.mp4"], ["c1/a", "c2/a"]),
        (["a.1.mp4", "a.2.mp4"], ["a.1", "a.2"]),
    ],
)
def test_an_id_is_the_shortest_that_no_other_video_has(names, wanted):
    assert ids(*names) == wanted


def test_a_written_id_is_not_given_to_another_video():
    assert ids("x/a.mp4", taken=("a",)) == ["a.mp4"]
    assert ids("a.mp4", taken=("a", "a.mp4")) == ["a-00000000"]
