"""The endings of video files: one list for importers, folders that are searched, and messages.

An ending only finds a file. Its first bytes decide which container it is (container.py).
"""

# Where several files of a folder have one name, the first ending of this list goes first
VIDEO_SUFFIXES = (
    *(".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".qt", ".3gp", ".3g2", ".f4v", ".divx", ".xvid", ".mk3d"),
    *(".flv", ".wmv", ".asf", ".ogv", ".ogm", ".ogg", ".mpg", ".mpeg", ".mpe", ".m2p", ".vob", ".mod", ".tod"),
    *(".ts", ".mts", ".m2ts", ".m2t", ".mt2s"),
)


def is_video_name(name: str) -> bool:
    """Report whether a file name has the ending of a video and is not hidden (`._v0.mp4` of a Mac)."""
    return name.lower().endswith(VIDEO_SUFFIXES) and not name.startswith(".")
