"""YAML that somebody else has written: plain values out of it, or one sentence.

All YAML that ptymesh reads goes through `parsed`: numbers, text, truth values, lists and groups, and nothing else. YAML
can say more than that (dates, binaries, objects that hold themselves, a few lines that stand for billions of values);
none of it is of use in a recipe.
"""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from ptymesh.errors import BadInput
from ptymesh.paths import refuse_folder, regular, short

#: Most characters of a text.
MOST_TEXT = 1 << 20
#: Most values in a text, counted each time that an alias repeats them.
MOST_VALUES = 50_000
#: Most groups within groups.
DEEPEST = 40
#: Most bits of a whole number, as arrays can hold.
MOST_BITS = 63

_CORE = ("null", "bool", "int", "float", "str", "seq", "map")
#: Errors that the constructors raise for values such as `0b_`, `!!int abc`, or whole numbers of 5000 digits.
_REFUSED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _Loader(yaml.SafeLoader):
    """Safe loader of plain values, which reads 3e5 as a number and a date as text.

    It refuses what YAML would take silently: a key that is given twice, of which the last would count.
    """

    yaml_constructors: ClassVar = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _CORE
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        #: Values below a node, and the groups within groups there, aliases written out.
        self._sizes: dict[int, tuple[int, int]] = {}
        self._values = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Return a node, unless it goes too deep, is too large, or holds itself."""
        mark = self.peek_event().start_mark
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"groups lie within each other more than {DEEPEST} deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if id(node) not in self._sizes:
            self._values += 1
            if isinstance(node, MappingNode | SequenceNode) and not node.end_mark:  # an alias to what is still open
                raise _refused("a group holds itself", mark)
            below = [self._sizes[id(one)] for one in _children(node)]
            self._sizes[id(node)] = 1 + sum(n for n, _ in below), 1 + max((deep for _, deep in below), default=0)
        values, deep = self._sizes[id(node)]
        if max(values, self._values) > MOST_VALUES or deep > DEEPEST:
            raise _refused(f"it says more than {MOST_VALUES} values, or groups more than {DEEPEST} deep", mark)
        return node

    def construct_object(self, node: Node, deep: bool = False) -> object:
        """Return the value of a node; what its constructor cannot read is named with its line."""
        try:
            value = super().construct_object(node, deep)
            if type(value) is int and value.bit_length() > MOST_BITS:
                stated = (
                    f"{short(str(node.value), 60)} has more than the {MOST_BITS} bits of the whole numbers in arrays"
                )
                raise _refused(stated, node.start_mark)
            return value
        except _REFUSED as error:
            kind = node.tag.rpartition(":")[2]
            stated = short(str(node.value), 60) if isinstance(node, ScalarNode) else "a list or a group"
            raise _refused(f"{stated} is no {kind}", node.start_mark) from error

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[object, object]:
        """Return a group, each of whose keys is text, a number or a truth value, given once."""
        if not isinstance(node, MappingNode):
            raise _refused(f"a {node.id} is no group of keys", node.start_mark)
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise _refused("a key is a group or a list", key.start_mark)
            if key.tag != "tag:yaml.org,2002:merge" and key.value in keys:
                raise _refused(f"the key {key.value!r} is given twice", node.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _refused(problem: str, mark: yaml.Mark) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, SequenceNode) else []


@lru_cache(maxsize=8)  # the recipe of a run is read by several parts of it
def _value_of(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except _REFUSED as error:  # of the scanner, such as an escape beyond the last character
        raise _refused(short(str(error), 80), loader.get_mark()) from error
    finally:
        loader.dispose()


def parsed(text: str, subject: str) -> Any:
    """Return the value that a YAML text stands for. Raises BadInput with the line where it cannot be read."""
    if len(text) > MOST_TEXT:
        raise BadInput(f"{subject} has {len(text)} characters; {MOST_TEXT} are the most that is read.")
    try:
        return deepcopy(_value_of(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f" (line {mark.line + 1}); mend that line"
        problem = " ".join(str(error.problem or error.context).split())[:200]
        problem = problem.replace("'<stream end>'", "the end of the text")
        if r"character '\t'" in problem:
            problem = "a tab, where only blanks may indent"
        raise BadInput(f"{subject} is not valid YAML: {problem}{line}.") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{subject} is not valid YAML ({' '.join(str(error).split())[:200]}); mend it.") from error


def text_of(path: Path, kind: str) -> str:
    """Return the text of a YAML file, UTF-8.

    Args:
        path: of the file.
        kind: the file in a message, such as `recipe`.

    Raises:
        BadInput: there is no such file, or it is too large.
        UnicodeDecodeError: it holds no text.
    """
    refuse_folder(path, kind, data=kind == "recipe")
    file = regular(path, f"The {kind}")
    size = file.stat().st_size
    if size > MOST_TEXT:
        raise BadInput(
            f"The {kind} {path} has {size} bytes and a YAML file at most {MOST_TEXT}; if it is a data set, "
            f"write a recipe with data: {{path: {path}}}."
        )
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_TEXT).decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"The {kind} {path} cannot be read ({error.strerror}); give the path of a YAML file.") from error
