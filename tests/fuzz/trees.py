"""What can be wrong with a tree of YAML or JSON: nodes, keys, types, and the text itself."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import yaml

from fuzz import arrays, raw
from fuzz.arrays import Dice

#: Values that stand in place of others. None of them names a folder to write to, or asks for much work.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    " ",
    "text",
    "nan",
    "1e3",
    "0x10",
    "1_000",
    "auto",
    "none",
    "centre",
    "~nosuch/x",
    "~",
    "own.cxi",
    "mask.npy",
    "result.h5",
    "missing.h5",
    "arrays.h5:/missing",
    "arrays.h5:",
    ":",
    "a" * 300,
    "/dev/zero",
    "/proc/self/mem",
    ".",
    "..",
    "é",
    "a\nb",
    "{}",
    "500MB",
    "1e400",
    "\0",
    [],
    {},
    [[]],
    [1],
    [1, 2],
    [1, 2, 3],
    [16, 16],
    [0.5, "a"],
    [None],
    {"a": 1},
    {"kind": "data"},
    {1: 2},
    -1,
    0,
    1,
    2,
    16,
    17,
    3.7,
    -0.0,
    1e-300,
    1e300,
    10**30,
    2**63,
    float("nan"),
    float("inf"),
    float("-inf"),
)
#: What a text of YAML may hold that a tree cannot.
SCALARS = (
    "2020-13-45",
    "2020-01-01",
    "2020-01-01T00:00:00Z",
    "0b_",
    "0x_",
    "0o",
    "1:30",
    "190:20:30",
    "=",
    "<<",
    "!!int abc",
    "!!float x",
    "!!bool 7",
    "!!map [a, b]",
    "!!seq {a: b}",
    "!!set {a, b}",
    "!!omap [a: b]",
    "!!pairs [a: b]",
    "!!binary ====",
    "!!binary /",
    "!!timestamp now",
    "!!null x",
    "!!str 5",
    "!!python/object/apply:os.getcwd []",
    "!!python/name:os.getcwd",
    "!unknown 5",
    "!<tag:x> 5",
    "&a [*a]",
    "&a {b: *a}",
    "*nowhere",
    "{? [a, b] : c}",
    "{[a]: b}",
    "[" * 3000,
    "[" * 200 + "]" * 200,
    "{a: " * 1000,
    "- " * 2000,
    "9" * 5000,
    "0x" + "f" * 5000,
    "1" + "0" * 4999 + ".0",
    "%YAML 9.9",
    "--- a\n--- b",
    "'",
    '"\\x"',
    '"\\ud800"',
    "|\n  a",
    ">9\n a",
    "\t- a",
    "@",
    "`",
    "? ",
    "[a, b",
    "a: b: c",
    "1e5",
    "1E+400",
    ".inf",
    "-.inf",
    ".nan",
    "!!float .nan",
    "yes",
    "on",
    "~",
    "\u2028",
    "\x07",
    "\ufeff1",
)

Path = tuple[Any, ...]


def paths(tree: Any, at: Path = ()) -> Iterator[Path]:
    """All nodes below the root, each as the keys that lead there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from paths(value, (*at, key))


def get(tree: Any, path: Path) -> Any:
    """The node at the end of the path."""
    for key in path:
        tree = tree[key]
    return tree


def change(tree: Any, dice: Dice) -> tuple[Any, str]:
    """Another tree, with one node changed, and in words what was done."""
    tree = copy.deepcopy(tree)
    known = list(paths(tree))
    if not known:
        return dice.choice(VALUES), "another root"
    path = dice.choice(known)
    parent, key = get(tree, path[:-1]), path[-1]
    name = ".".join(str(part) for part in path)
    kind = dice.choice(("value",) * 6 + ("number",) * 3 + ("remove", "rename", "move", "wrap", "add", "nest", "copy"))
    if kind == "remove":
        del parent[key]
        return tree, f"{name} removed"
    if kind == "rename" and isinstance(parent, dict):
        new = dice.choice((f"{key}s", f"{key} ", str(key).upper(), "", 5, None, True, str(key)[:-1]))
        parent[new] = parent.pop(key)
        return tree, f"{name} renamed to {new!r}"
    if kind == "add" and isinstance(parent, dict):
        new = dice.choice(("extra", "path", "kind", "start", "0", "engine", "modes"))
        parent[new] = dice.choice(VALUES)
        return tree, f"{new!r}: {parent[new]!r} beside {name}"
    if kind == "move":
        other = dice.choice(known)
        value = copy.deepcopy(get(tree, other))
    elif kind == "wrap":
        value = dice.choice(([parent[key]], {"value": parent[key]}, [parent[key], parent[key]]))
    elif kind == "nest":
        value = parent[key]
        for _ in range(dice.choice((5, 60))):
            value = [value]
    elif kind == "copy" and isinstance(parent, list):
        parent.extend(copy.deepcopy(parent[key]) for _ in range(dice.choice((1, 3))))
        return tree, f"{name} copied"
    elif kind == "number":
        value = dice.choice(arrays.FLOATS + arrays.NUMBERS)
    else:
        value = dice.choice(VALUES)
    if busy(key, value):
        value = 2
    parent[key] = value
    return tree, f"{name}: {shortened(value)}"


def busy(key: Any, value: Any) -> bool:
    """Whether this asks, soundly, for more work than a try has time for."""
    return (
        key in ("epochs", "slices", "modes", "opr_modes", "memory", "tries")
        and isinstance(value, int | float)
        and 3 < value < 1e18
    )


def shortened(value: Any) -> str:
    """For words."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def text(tree: Any, dice: Dice) -> tuple[bytes, str]:
    """YAML of the tree, with something wrong in the text."""
    good = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    lines = good.splitlines()
    kind = dice.choice(
        ("scalar",) * 6 + ("twice", "indent", "bytes", "drop", "join", "anchors", "prefix", "deep", "cr")
    )
    at = dice.randrange(len(lines))
    if kind == "scalar":
        word = dice.choice(SCALARS)
        lines[at] = re.sub(r":.*$", lambda _: f": {word}", lines[at]) if ":" in lines[at] else f"  - {word}"
        kind = f"{lines[at].strip()[:60]!r}"
    elif kind == "twice":
        lines.insert(at, lines[at])
    elif kind == "indent":
        lines[at] = dice.choice((" ", "\t", "    ", "- ")) + lines[at]
    elif kind == "drop":
        lines[at] = lines[at].replace(dice.choice(": -'[]"), "", 1)
    elif kind == "join" and at:
        lines[at - 1 : at + 1] = [lines[at - 1] + lines[at]]
    elif kind == "anchors":
        first = "x0: &x0 [a, a, a, a, a, a, a, a, a]"
        lines += [first, *(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 10))]
    elif kind == "prefix":
        lines.insert(
            0, dice.choice(("%TAG ! x", "---", "...", "!!map", "- a", "\ufeff", "<<: {a: 1}", "? |\n  a\n: b"))
        )
    elif kind == "deep":
        lines.append("deep: " + dice.choice(("[", "{a: ", "- ", "!!seq [")) * dice.choice((100, 3000, 20000)))
    made = "\n".join(lines).encode("utf-8", "surrogatepass")
    if kind == "bytes":
        return raw.damage(made, dice)
    return (made.replace(b"\n", b"\r") if kind == "cr" else made), f"line {at}: {kind}"


def setting(keys: list[str], dice: Dice) -> str:
    """Something for --set."""
    key = dice.choice(keys)
    if dice.random() < 0.15:
        key = dice.choice(
            (f"{key}.x", f"{key}.0", key.replace(".", ".."), "", ".", f"x.{key}", key.upper(), f"{key}.-1")
        )
    kind = dice.random()
    if kind < 0.4:
        word = dice.choice(SCALARS)
    else:
        value = dice.choice(VALUES if kind < 0.8 else arrays.FLOATS + arrays.NUMBERS)
        if busy(key.rpartition(".")[2], value):
            value = 2
        word = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
    made = f"{key}={word}" if dice.random() > 0.05 else dice.choice((key, "=", f"={word}", f"{key}=={word}"))
    return made.replace("\0", "")
