"""Command `ctvr streams frames`."""

from __future__ import annotations

import argparse
from typing import Any

from ctvr.orchestrator.cli.options import user_path


def add_frames(actions: Any) -> None:
    parser = actions.add_parser(
        "frames",
        help="write the frames of a video as training reads them, or check a folder of videos",
        description="Prints one line for a video: container, codec, size, number of frames, frames per second, "
        "duration, decoder. For a folder, searched recursively, prints the number of readable videos and a line for "
        "each unreadable one.",
    )
    parser.add_argument("path", type=user_path, metavar="FILE", help="a video, or a folder of videos")
    parser.add_argument(
        "--num-frames", type=int, default=12, metavar="N", help="number of frames of each video (default: %(default)s)"
    )
    parser.add_argument("--start", type=float, metavar="SECONDS", help="start of the segment (default: 0)")
    parser.add_argument("--end", type=float, metavar="SECONDS", help="end of the segment (default: the video's end)")
    parser.add_argument(
        "--out",
        type=user_path,
        metavar="FILE",
        help="file to write: .npz with the arrays `frames` and `seconds`, or .png with the frames",
    )
    parser.set_defaults(run=_frames)


def _frames(arguments: argparse.Namespace) -> str:
    from ctvr.orchestrator.jobs.frames import frames

    return frames(arguments.path, arguments.num_frames, arguments.start, arguments.end, arguments.out)
