"""The report of `ctvr streams check` and of every import: missing videos, and suspicious captions and files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from ctvr.orchestrator.console import count
from ctvr.orchestrator.streams.captions import MISSING, correct_encoding, decode_entities
from ctvr.orchestrator.streams.clip_tokens import PLACES, clip_tokenizer
from ctvr.orchestrator.streams.stream import SPLITS, Item, Stream, iter_items
from ctvr.orchestrator.streams.videos import check_videos

Reader = Callable[[list[str]], list[tuple[Hashable, bool]]]
EXTRA_TOKENS = 3  # tokens besides one per ASCII character: start, end, leading blank


def check_stream(stream: Stream) -> str:
    """Report missing videos, captions or files that several videos share, and suspicious or truncated captions."""
    lines = [check_videos(stream)]
    if stream.domain != "images":
        lines += [*_same_files(stream), *_films_of_both_sides(stream), *_odd_captions(stream)]
    if stream.domain == "videos":
        lines += _shared_captions(stream)
        if not stream.text_features:
            lines += report_cuts(stream, clip_tokenizer().read, PLACES)
    return "\n".join(lines)


def describe(stream: Stream) -> str:
    """Return one line per task: its categories, videos and captions."""
    lines = []
    for task in stream.tasks:
        counts = [
            f"{split} {count(len(items), 'video')}, {count(sum(len(item.captions) for item in items), 'caption')}"
            for split in SPLITS
            if (items := getattr(task, split))
        ]
        categories = "1 category" if len(task.categories) == 1 else f"{len(task.categories)} categories"
        lines.append(f"{task.name}: {categories}; " + "; ".join(counts))
    return "\n".join(lines)


def _shared_captions(stream: Stream) -> Iterator[str]:
    """Report the highest R@k that the captions allow: if n videos share a caption, only k of them can be found.

    Captions are equal if their CLIP tokens are equal, or in a stream with text features if their texts are equal.
    The gallery contains the test videos of all tasks; in the protocol cvlm, the test videos of the caption's task.
    """
    read: Callable[[str], Hashable] = str if stream.text_features else clip_tokenizer().within
    parts = [task.test for task in stream.tasks]
    galleries = parts if stream.protocol == "cvlm" else [tuple(item for part in parts for item in part)]
    shared = total = 0
    hits = Counter[int]()  # k -> captions that can find their video among the first k
    example, most = "", 1
    for gallery in galleries:
        videos: dict[Hashable, Counter[str]] = defaultdict(Counter)  # tokens -> how often each video has them
        texts: dict[Hashable, str] = {}
        for item in gallery:
            for caption in item.captions:
                tokens: Hashable = read(caption)
                videos[tokens][item.video] += 1
                texts.setdefault(tokens, caption)
        for tokens, counts in videos.items():
            total += counts.total()
            for k in (1, 5, 10):
                hits[k] += sum(count for _, count in counts.most_common(k))
            shared += counts.total() if len(counts) > 1 else 0
            if len(counts) > most:
                example, most = texts[tokens], len(counts)
    if shared:
        place = "gallery of its task" if stream.protocol == "cvlm" else "gallery"
        bounds = [f"R@{k} is at most {100 * hits[k] / total:.2f}" for k in hits if hits[k] < total]
        yield (
            f"{shared} of {total} test captions belong to several videos of the {place} ({example[:60]!r} belongs to "
            f"{most}), since their tokens are equal. Only one of them can rank first, so {', '.join(bounds)}."
        )


def report_cuts(stream: Stream, read: Reader, places: int) -> Iterator[str]:
    """Report the captions that a text tower of `places` tokens truncates, and the test captions that become equal.

    Args:
        read: returns for each caption the tokens that the tower reads, and whether they are truncated.
    """
    every = [(text, split, item) for _, split, item in iter_items(stream) for text in item.captions]
    long = list(dict.fromkeys(text for text, _, _ in every if not text.isascii() or len(text) + EXTRA_TOKENS > places))
    tokens = dict(zip(long, read(long)))
    cut = [item.video for text, _, item in every if text in tokens and tokens[text][1]]
    if not cut:
        return
    alike: dict[Hashable, Counter[str]] = defaultdict(Counter)  # tokens -> test captions with them, and their counts
    for text, split, _ in every:
        if split == "test" and text in tokens:
            alike[tokens[text][0]][" ".join(text.lower().split())] += 1
    equal = sum(texts.total() for texts in alike.values() if len(texts) > 1)
    yield (
        f"{len(cut)} of {len(every)} captions are cut at {places} tokens (the first: video {cut[0]}); {equal} test "
        f"caption{'s become' if equal != 1 else ' becomes'} equal to others."
    )


def _same_files(stream: Stream) -> Iterator[str]:
    ids: dict[object, list[str]] = defaultdict(list)
    for _, _, item in iter_items(stream):
        ids[item.path, item.segment].append(item.video)
    if several := [names for names in ids.values() if len(names) > 1]:
        yield (
            f"{_count(several, 'file has', 'files have')} more than one id ({' and '.join(several[0][:3])}). Each id "
            "counts as a separate video. Keep one id."
        )


def _films_of_both_sides(stream: Stream) -> Iterator[str]:
    """Report videos with one segment in the training split and another in a searched split."""
    sides: dict[str, dict[str, Item]] = defaultdict(dict)
    for _, split, item in iter_items(stream):
        sides[item.path][split] = item
    both = [found for found in sides.values() if "train" in found and len(found) > 1]
    if both:
        first = both[0]
        other = next(split for split in first if split != "train")
        yield (
            f"{_count(both, 'video has', 'videos have')} segments in train and in other splits "
            f"({first['train'].video} in train, {first[other].video} in {other}), so the gallery was partly "
            "trained on. Put all segments of a video into one split."
        )


def _odd_captions(stream: Stream) -> Iterator[str]:
    markers = [(text, item.video) for _, _, item in iter_items(stream) for text in item.captions if text in MISSING]
    if markers:
        yield (
            f"{_count(markers, 'caption marks', 'captions mark')} a missing value, such as {markers[0][0]!r} of "
            f"{markers[0][1]}. Fill them in, and import the file again."
        )
    kinds = {"HTML entities": decode_entities, "text in a wrong encoding": correct_encoding}
    for kind, correct in kinds.items():
        texts = [(text, item.video) for _, _, item in iter_items(stream) for text in item.captions]
        if wrong := [(text, video) for text, video in texts if correct(text) != text]:
            yield (
                f"{_count(wrong, 'caption contains', 'captions contain')} {kind}, such as {wrong[0][0][:60]!r} of "
                f"{wrong[0][1]}. CLIP's tokenizers correct them, others do not. `ctvr streams import ... "
                "--correct-captions` does."
            )
    lost = [item.video for _, _, item in iter_items(stream) if any("\ufffd" in text for text in item.captions)]
    if lost:
        yield (
            f"{_count(lost, 'video has', 'videos have')} captions with lost characters (U+FFFD), first {lost[0]}. Save "
            "the original file as UTF-8, and import it again."
        )
    odd = [item.video for _, _, item in iter_items(stream) for caption in item.captions if _is_odd(caption)]
    if odd:
        yield (
            f"{_count(odd, 'caption contains', 'captions contain')} control characters, such as one of {odd[0]}. "
            "Tokenizers drop them or truncate there. Clean the file, and import it again."
        )


def _is_odd(caption: str) -> bool:
    if caption.isprintable():
        return False
    return any((ord(each) < 32 or ord(each) == 127) and not each.isspace() for each in caption)


def _count(found: Sequence[object], one: str, many: str) -> str:
    return f"1 {one}" if len(found) == 1 else f"{len(found)} {many}"
