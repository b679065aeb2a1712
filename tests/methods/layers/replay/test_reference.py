import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from ctvr.methods.layers.replay.reference import load_reference
from tests.methods.conftest import make_small_clip
from tests.refusing import refused

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip():
    return make_small_clip()


def picture(path, size=(40, 60), colour=(255, 0, 0)):
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_the_embedded_set_is_normalised_one_frame_videos_with_captions(clip):
    reference = load_reference("embedded", clip)
    assert len(reference) == len(reference.tokens) == 336
    images = reference.images(range(336), CPU)
    assert images.shape == (336, 1, 3, 32, 32)
    levels = ((images * 0.25 + 0.5) * 255).round()
    assert 0 <= levels.min() < levels.max() <= 255
    assert len(images.flatten(1).unique(dim=0)) == 336  # no two alike


def test_an_embedded_picture_shows_its_caption(clip):
    captions = []
    clip.tokenize, tokenize = (lambda texts: captions.extend(texts) or tokenize(texts)), clip.tokenize
    try:
        reference = load_reference("embedded", clip)
    finally:
        clip.tokenize = tokenize
    row = captions.index("a red circle on a blue ground")
    pixels = ((reference.images([row], CPU)[0, 0] * 0.25 + 0.5) * 255).round()
    colours = {tuple(c) for c in pixels.flatten(1).mT.int().tolist()}
    assert colours == {(215, 40, 40), (45, 80, 220)}
    assert tuple(pixels[:, 0, 0].int().tolist()) == (45, 80, 220)
    assert 0.1 < float((pixels[0] == 215).float().mean()) < 0.4


def test_the_embedded_set_is_always_the_same(clip):
    one, two = (load_reference("embedded", clip).images([3, 200], CPU) for _ in range(2))
    assert torch.equal(one, two)


def test_a_folder_of_images_with_captions_is_read(clip, tmp_path):
    picture(tmp_path / "b.png", colour=(0, 255, 0))
    picture(tmp_path / "a" / "c.jpg", size=(90, 33), colour=(0, 0, 255))
    (tmp_path / "captions.txt").write_text("one\n\ntwo words\nthree\n")
    reference = load_reference(str(tmp_path), clip)
    assert len(reference) == 2
    assert len(reference.tokens) == 3
    images = reference.images([1, 0, 1], CPU)
    assert images.shape == (3, 1, 3, 32, 32)
    torch.testing.assert_close(images[0, 0, :, 5, 5], torch.tensor([-2.0, 2.0, -2.0]))  # green, normalized
    assert torch.equal(images[0], images[2])


def test_a_file_of_tensors_is_read_and_resized(clip, tmp_path):
    images = torch.randint(256, (3, 3, 48, 48), dtype=torch.uint8)
    save_file({"images": images, "tokens": clip.tokenize(["a b", "c"])}, tmp_path / "set.safetensors")
    reference = load_reference(str(tmp_path / "set.safetensors"), clip)
    assert reference.images([0, 2], CPU).shape == (2, 1, 3, 32, 32)
    assert torch.equal(reference.tokens, clip.tokenize(["a b", "c"]))


def test_every_mistake_is_named(clip, tmp_path):
    def refuses(*values, path=tmp_path):
        refused(lambda: load_reference(str(path), clip), path, *values, kind=ValueError)

    refuses()
    picture(tmp_path / "a.png")
    refuses("captions.txt")
    (tmp_path / "captions.txt").write_text("\n")
    refuses("captions.txt")
    (tmp_path / "captions.txt").write_text("one")
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="broken.png"):
        load_reference(str(tmp_path), clip).images([1], CPU)
    file = tmp_path / "set.safetensors"
    file.write_bytes(b"garbage")
    refuses(path=file)
    save_file({"frames": torch.zeros(1)}, file)
    refuses("['frames']", path=file)
    save_file({"images": torch.zeros(1, 3, 8, 8), "tokens": torch.zeros(1, 4, dtype=torch.int64)}, file)
    refuses("uint8", path=file)
    save_file({"images": torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "tokens": torch.full((1, 4), 500)}, file)
    refuses(path=file)
    refuses(path=tmp_path / "nothing")
