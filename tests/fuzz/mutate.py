"""Damage to a file, drawn from a seed: bytes of any format, values of JSON, cells and lines of text."""

import json
import random
from collections.abc import Iterator
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        2**63,
        10**400,
        1e308,
        float("inf"),
        float("nan"),
        0.5,
        [],
        {},
        [[]],
        {"a": 1},
        {"": 0},
        [None],
    ),
    *(
        "",
        " ",
        "a\0b",
        "\n",
        "\ud800",
        "\u202e",
        "\u2028",
        "x" * 5000,
        "9" * 5000,
        "nan",
        "NULL",
        "²",
        "None",
        "-x",
        "con",
    ),
    *(
        "../../outside",
        "/etc/passwd",
        "~root",
        "{outside}/file",
        "module:Class",
        "%s%n",
        "=1+1",
        "<script>",
        "['a'",
        "[" * 3000,
    ),
)
TOKENS = (
    *(b"9" * 6000, b"-" + b"9" * 6000, b"NaN", b"-Infinity", b"1e999", b"[" * 100_000, b'{"a":' * 5000, b"\xff\xfe"),
    *(b"*a", b"&a [*a]", b"<<: *a", b"0x" + b"f" * 4000, b"1:" + b"59:" * 2000 + b"1", b"!!python/name:os.system "),
    *(b"\0", b"\r", b'"'),
)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Change bytes: flip bits, cut, repeat, insert, or overwrite numbers of four bytes."""
    data = bytearray(content or b"\0")
    at = draw.randrange(len(data))
    kind = draw.randrange(7)
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        end = min(len(data), at + draw.choice((1, 8, 64, 512)))
        del data[at:end]
    elif kind == 2:
        end = min(len(data), at + draw.choice((8, 64, 512)))
        data[at:at] = data[at:end] * draw.choice((1, 2, 50))
    elif kind == 3:
        data[at:at] = draw.choice(TOKENS)
    elif kind == 4:
        data[at : at + 4] = draw.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"))
    else:  # headers are short and decide most
        most = len(data) if kind == 5 else min(len(data), 400)
        for _ in range(draw.choice((1, 1, 3, 20))):
            data[draw.randrange(most)] ^= 1 << draw.randrange(8)
    return bytes(data)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value within a value."""
    yield place
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield from places(value[key], (*place, key))


def replaced(value: Any, draw: random.Random, outside: str) -> Any:
    """Change one value of a structure: replace it by a hostile one, remove, rename or repeat it."""
    made = json.loads(json.dumps(value))
    place = draw.choice([each for each in places(made) if each] or [()])
    if not place:
        return draw.choice(HOSTILE)
    holder = made
    for key in place[:-1]:
        holder = holder[key]
    key, kind = place[-1], draw.randrange(6)
    hostile = draw.choice(HOSTILE)
    hostile = hostile.replace("{outside}", outside) if isinstance(hostile, str) else hostile
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[str(key) + "x"] = holder.pop(key)
    elif kind == 2 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = hostile
    return made


def cells_replaced(content: bytes, draw: random.Random, outside: str) -> bytes:
    """Change a cell, a line or the separator of a table."""
    lines = content.decode().split("\n")
    at = draw.randrange(len(lines))
    kind = draw.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        lines = [line.replace(",", draw.choice(";|\t:")) for line in lines]
    else:
        cells = lines[at].split(",")
        hostile = draw.choice([each for each in HOSTILE if isinstance(each, str)])
        cells[draw.randrange(len(cells))] = hostile.replace("{outside}", outside)
        lines[at] = ",".join(cells)
    return "\n".join(lines).encode(errors="surrogatepass")
