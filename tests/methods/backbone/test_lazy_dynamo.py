"""open_clip is imported without torch._dynamo, which works as always when it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from ctvr.methods.backbone.load import load_backbone
import torch
clip = load_backbone("tiny-clip", "shipped")
clip.text(clip.tokenize(["a red square"]))
loaded = sorted(name for name in sys.modules if name.startswith("torch._dynamo"))
assert loaded == [], loaded[:3]
from torchvision.ops import roi_align
boxes = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]])
assert roi_align(torch.ones(1, 1, 8, 8), boxes, 2).tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
from torchvision.ops.roi_align import is_compile_supported
import torch._dynamo
assert is_compile_supported("cpu") == torch._dynamo.utils.is_compile_supported("cpu")
assert torch._dynamo.__file__
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
"""


def test_a_tower_is_loaded_without_dynamo_and_dynamo_works_afterwards():
    done = subprocess.run([sys.executable, "-c", CODE], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
