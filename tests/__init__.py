"""Tests. They use the kernels with which recorded numbers are equal on every processor with AVX2."""

import os

os.environ.setdefault("CTVR_KERNELS", "portable")
