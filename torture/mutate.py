"""Mutations: bytes, text, values and JSON that nobody would write, from a seeded generator."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

WORDS = (
    *(
        "",
        " ",
        "\x00",
        "\n",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "-1",
        "0",
        "99999999999999999999999",
        "0x1F",
        "1_000",
        "true",
    ),
    *(
        "null",
        "[]",
        "{}",
        "[[",
        "]]",
        "''",
        '"',
        "'''",
        "=",
        ".",
        "..",
        "../..",
        "/dev/zero",
        "~nobody/x",
        "%s%n",
        "${HOME}",
    ),
    *(
        "<script>",
        "\u202e",
        "\ud7ff",
        "🎈",
        "é",
        "A" * 300,
        "(" * 40,
        "run:",
        "timm:",
        "hf-hub:",
        "a.b.c",
        "[a=b]",
        "−",
        "by",
    ),
    *("*", "within", "1970-01-01", "07:32:00", "#", "\r", "\t", "\u2028", "{{7*7}}", "--help", "\x1b[31m"),
)
NUMBERS = (
    0,
    1,
    -1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.0,
    -0.0,
    1e-320,
    1e308,
    math.inf,
    -math.inf,
    math.nan,
)
JSONS = (
    *(
        b"",
        b"null",
        b"[]",
        b"{}",
        b"0",
        b'"x"',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"NaN",
        b'{"status": NaN}',
        b"\xff\xfe{}",
    ),
    *(
        b'{"status": "finished", "test": [], "epochs": 1e999}',
        b'{"status": {"a": 1}}',
        b"1" * 20_000,
        b'{"a": 1}{"a": 2}',
    ),
    *(
        b'{"\\ud800": "\\udfff"}',
        b'{"epoch": "x"}\n{"epoch": null}\n',
        b"{" + b'"k":1,' * 5000 + b'"k":1}',
        b"\x00" * 64,
    ),
)


def value(rng: random.Random, depth: int = 0) -> Any:
    """Something else: a word, a number, a list, a table."""
    kind = rng.randrange(8)
    if kind <= 2:
        return rng.choice(WORDS)
    if kind <= 4:
        return rng.choice(NUMBERS)
    if kind == 5:
        return rng.choice((True, False, None, rng.uniform(-10, 10), rng.randrange(-5, 2000)))
    if depth > 2:
        return None
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {
        rng.choice((*WORDS[:20], "name", "epoch", "value", "settings")): value(rng, depth + 1)
        for _ in range(rng.randrange(4))
    }


def flip(data: bytes, rng: random.Random) -> bytes:
    """Change some bits."""
    out = bytearray(data or b"\x00")
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, flip, repeat, overwrite or empty a file's content."""
    at, length = rng.randrange(len(data) + 1), rng.randrange(1, 64)
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return b""
    if kind == 2:
        return data[:at] + rng.randbytes(length) + data[at:]
    if kind == 3:
        return data[:at] + data[at + length :]
    if kind == 4:
        return data[:at] + rng.choice((b"\x00", b"\xff", b"\x7f")) * length + data[at + length :]
    if kind == 5:  # the numbers of a header
        early = rng.randrange(min(len(data), 64) + 1)
        return (
            data[:early]
            + rng.choice((b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", b"\x00\x00\xff\xff"))
            + data[early + 4 :]
        )
    return flip(data, rng)


def mutate_text(text: str, rng: random.Random) -> str:
    """Change words, lines and signs of a text that has a grammar."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines, at = text.split("\n"), rng.randrange(len(text) + 1)
        kind = rng.randrange(8)
        if kind == 0:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + rng.randrange(1, 9) :]
        elif kind == 2:
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
            text = "\n".join(lines)
        elif kind == 3:
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
        elif kind == 4:
            number = rng.randrange(len(lines))
            key, sign, _ = lines[number].partition("=")
            new = rng.choice((*WORDS, *map(repr, NUMBERS)))
            lines[number] = f"{key}{sign} {rng.choice((new, json.dumps(new)))}" if sign else new
            text = "\n".join(lines)
        elif kind == 5:
            text = text[:at] + rng.choice("[]{}=\"'.,#\n\\()<>*/−-+") + text[at:]
        elif kind == 6:
            text = text[:at] + text[at:].swapcase()
        else:
            text = (
                text[:at]
                + rng.choice(("[" * 2000, "(" * 5000, "{a=" * 500, "a." * 3000, "-" * 5000, "\n" * 50))
                + text[at:]
            )
    return text


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Put something else at some place of a JSON document, or break its text."""
    if rng.random() < 0.3:
        return rng.choice(JSONS)
    if rng.random() < 0.4:
        return mutate_bytes(data, rng)
    try:
        tree = json.loads(data)
    except ValueError:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 3))):
        tree = _elsewhere(tree, rng)
    return json.dumps(tree).encode(errors="surrogatepass")


def _elsewhere(tree: Any, rng: random.Random) -> Any:
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(list(tree))
        if rng.random() < 0.1:
            return {k: v for k, v in tree.items() if k != key}
        return {**tree, key: _elsewhere(tree[key], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.9:
        at = rng.randrange(len(tree))
        return [*tree[:at], _elsewhere(tree[at], rng), *tree[at + 1 :]]
    return value(rng)


def mutate_file(path: Path, rng: random.Random) -> None:
    """Damage a file where it lies: its content, or what sort of thing it is."""
    data = path.read_bytes()
    path.unlink()
    kind = rng.random()
    if kind < 0.04:
        path.mkdir()
    elif kind < 0.06:
        path.symlink_to(path.name)
    elif kind < 0.08:
        path.symlink_to("/dev/null")
    elif kind < 0.10:
        pass  # it is gone
    elif path.suffix in (".json", ".jsonl"):
        path.write_bytes(mutate_json(data, rng))
    elif path.suffix == ".toml":
        path.write_bytes(mutate_text(data.decode(), rng).encode(errors="surrogatepass"))
    else:
        path.write_bytes(mutate_bytes(data, rng))
