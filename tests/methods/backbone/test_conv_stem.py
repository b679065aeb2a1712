"""The convolutional stem replaces the patch convolution of a ViT."""

import torch

from ctvr.methods.backbone.conv_stem import ConvStem
from ctvr.methods.backbone.load import load_backbone


def test_a_stem_gives_one_token_for_a_square_of_its_kernel_size():
    stem = ConvStem((4, 8, 8), 12)
    assert stem.kernel_size == (16, 16)
    assert stem(torch.zeros(2, 3, 64, 48)).shape == (2, 12, 4, 3)
    assert stem.weight is stem[-1].weight


def test_tiny_clip_stem_embeds_frames_and_captions_in_one_space():
    clip = load_backbone("tiny-clip-stem", "shipped")
    assert isinstance(clip.vision.conv1, ConvStem)
    assert clip.vision.num_tokens == 17
    frames = torch.zeros(2, 4, 3, clip.image_size, clip.image_size)
    assert clip.vision(frames).shape == (2, 4, clip.embed_dim)
    assert clip.text(clip.tokenize(["a red circle", "a blue star"])).shape == (2, clip.embed_dim)
