"""Readers of users' text files, which must be regular and of bounded size.

A FIFO or device neither blocks nor fills the memory. UTF-8 is read with and without a byte order mark, UTF-16 with one.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
import stat
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, cast

from ctvr.orchestrator.errors import ConfigError

MIB = 1 << 20
YAML_BYTES, YAML_VALUES, YAML_LEVELS, YAML_DIGITS = 1 << 20, 10_000, 50, 100  # limits, with all aliases expanded
MAX_BYTES = 1024 * MIB  # a manifest of a million videos has about 300 MB
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_BREAK = re.compile(r"\r\n|\n|\r")  # `str.splitlines` also splits at U+2028, U+0085, VT and FF, which occur in captions


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading its bytes.

    Raises:
        ConfigError: if the file is absent, may not be read, or is a folder, FIFO, socket or device.
    """
    try:  # opening a FIFO without a writer would block
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL byte in the name
        raise ConfigError(f"cannot be read ({error})", f"{str(path)!r}", remedy="Pass the path of a file.") from error
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", path, remedy="Pass the path of a file.") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise ConfigError(f"cannot be read (it is a {_kind(mode)})", path, remedy="Pass the path of a file.")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises:
        ConfigError: in the cases of `open_regular`, and if the file is longer.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            content = file.read(size + 1 if size <= most else 0)  # `read` allocates its argument in advance
            while size <= most >= len(content) and (more := file.read(max(len(content), MIB))):  # grew, or in /proc
                content += more
        except OSError as error:
            raise ConfigError(f"cannot be read ({error.strerror})", path, remedy="Pass the path of a file.") from error
    if max(size, len(content)) > most:
        raise ConfigError(f"is larger than {most / MIB:g} MB", path, remedy="Check the path.")
    return content


def _kind(mode: int) -> str:
    kinds = {stat.S_ISDIR: "folder", stat.S_ISFIFO: "FIFO", stat.S_ISSOCK: "socket"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "device")


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Read and decode a text file of at most `most` bytes.

    A byte order mark is removed. Line breaks are not translated.

    Raises:
        ConfigError: in the cases of `read_bytes`, and for another encoding; it names the line and a command that
            converts the file.
    """
    content = read_bytes(path, most)
    encoding = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "utf-8")
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) or content[:4].count(0) == 3:
        raise ConfigError(f"is UTF-32. {_convert('utf-32', path)}", path)
    if encoding == "utf-8" and 0 in content[:2] and content[:4].count(0) == 2:
        order = "utf-16le" if content[0] else "utf-16be"
        raise ConfigError(f"is UTF-16 without a byte order mark. {_convert(order, path)}", path)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        if encoding == "utf-16" or b"\0" in content:
            name = "UTF-16" if encoding == "utf-16" else "UTF-8"
            raise ConfigError(f"line {line} is not {name} text", path, remedy="Pass a text file.") from error
        where = f"{path}: line {line}: byte 0x{content[error.start]:02x}"
        raise ConfigError(f"{where} is not UTF-8 text. {_convert('windows-1252', path)}") from error


def _convert(encoding: str, path: Path) -> str:
    return f"Convert the file, if it is {encoding}: iconv -f {encoding} -t utf-8 {shlex.quote(str(path))} > NEW_FILE"


def lines_of(text: str) -> list[str]:
    """Split a text at LF, CR LF and CR into lines without line breaks; the last line may lack one."""
    lines = _BREAK.split(text)
    return lines[:-1] if not lines[-1] else lines


def parse_yaml(text: str, where: str) -> Any:
    """Parse a YAML document of plain values, with limits on the expansion of its aliases.

    Args:
        where: the option or file, as errors name it.

    Raises:
        ConfigError: if it is not YAML, has a tag of another type, or exceeds the limits.
    """
    import yaml

    try:
        loader = _bounded_loader()(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError as error:
        raise ConfigError("is nested too deeply", where, remedy="Use one `name: value` per line.") from error
    # e.g. a number of 5000 digits, a date in month 13, text that does not fit its tag (`!!bool perhaps`)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise ConfigError(f"cannot be read as YAML ({reason[:300]})", where, remedy="Correct it.") from error


def _bounded_loader() -> Any:
    """Return PyYAML's safe loader with limits.

    An alias expands to everything below its anchor, so ten lines can expand to 10^9 values or contain themselves.
    """
    import yaml
    from yaml.composer import ComposerError
    from yaml.events import AliasEvent, CollectionStartEvent

    class Loader(yaml.SafeLoader):
        depth = 0

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self.open: set[str] = set()  # anchors of nodes that are not complete yet
            self.sizes: dict[int, tuple[int, int]] = {}  # id of a node -> expanded nodes and levels below it

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            anchor, mark = getattr(event, "anchor", None), cast(Any, event).start_mark
            if isinstance(event, AliasEvent) and anchor in self.open:
                raise ComposerError(None, None, f"*{anchor[:60]} is inside its own anchor", mark)
            self.depth += 1
            if self.depth > YAML_LEVELS:
                raise ComposerError(None, None, f"more than {YAML_LEVELS} levels", mark)
            self.open |= {anchor} if anchor and isinstance(event, CollectionStartEvent) else set()
            node = super().compose_node(parent, index)
            self.open.discard(anchor)
            self.depth -= 1
            self.measure(node, mark)
            return node

        def measure(self, node: Any, mark: Any) -> None:
            below = [] if isinstance(node, yaml.ScalarNode) else list(node.value)
            if node.tag.endswith(":int") and len(node.value) > YAML_DIGITS:  # 0xfff... and 59:59:... have no limit
                raise ComposerError(None, None, f"a number of more than {YAML_DIGITS} digits", mark)
            if isinstance(node, yaml.MappingNode):
                names = Counter(key.value for key, _ in below if isinstance(key, yaml.ScalarNode))
                if twice := next((name for name, count in names.items() if count > 1 and name != "<<"), None):
                    raise ComposerError(None, None, f"{twice[:60]!r} is given twice", mark)
                below = [each for pair in below for each in pair]
            sizes = [self.sizes[id(each)] for each in below]
            found = 1 + sum(size for size, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
            if found[0] > YAML_VALUES or found[1] > YAML_LEVELS:
                raise ComposerError(None, None, f"more than {YAML_VALUES} values or {YAML_LEVELS} levels", mark)
            self.sizes[id(node)] = found

    return Loader
