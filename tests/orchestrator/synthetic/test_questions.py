"""The embedded questions are about the videos of shapes-5; each has one answer that the clip shows."""

from ctvr.orchestrator.streams.load import load_stream
from ctvr.orchestrator.synthetic.drawing import COLOURS, SHAPES
from ctvr.orchestrator.synthetic.scenes import CATEGORIES
from ctvr.orchestrator.synthetic.stream import plan, render_stream


def test_qa_videos_equal_shapes_5_and_answers_are_unique(tmp_path):
    stream, plain = load_stream("shapes-qa", tmp_path, render=False), render_stream(tmp_path, 5, videos=False)
    scenes = {clip.path: clip.scene for clip, _ in plan(0)}
    places = {category.place for category in CATEGORIES}
    for task, videos in zip(stream.tasks, plain["tasks"], strict=True):
        for split in ("train", "val", "test"):
            items = getattr(task, split)
            assert [item.video for item in items] == [item["video"] for item in videos[split]]
            for item in items:
                scene = scenes[f"{split}/{item.path.rpartition('/')[2]}"]
                (colour, shape, place) = item.answers
                assert colour in COLOURS
                assert shape in SHAPES
                assert place in places
                things, motion = [scene.main, scene.other], CATEGORIES[scene.category].motion
                named = item.captions[0].removeprefix("what color is the ").removesuffix("?")
                assert [thing.colour for thing in things if thing.shape == named] == [colour]
                named = item.captions[1].removeprefix("what is the ").removesuffix(" thing?")
                assert [thing.shape for thing in things if thing.colour == named] == [shape]
                if motion == "recolour":  # the main thing has two colors
                    assert colour == scene.other.colour
                if motion == "morph":  # or two shapes
                    assert shape == scene.other.shape
