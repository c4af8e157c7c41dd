"""Sentences about pydantic's validation errors: the key, the value, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ptymesh.errors import PtymeshError
from ptymesh.units import quantity_of

#: Expected values in the words of a YAML file, by pydantic's type of error.
_PLAIN = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "byte_size": "a size, such as 500MB or 4GB",
    "byte_size_unit": "a size, such as 500MB or 4GB",
    "tuple_type": "a list",
    "list_type": "a list (each item on a line that begins with a dash, or all of them in [ ])",
    "dict_type": "a group of keys",
}

_NUMBERS = {"int_type", "int_parsing", "int_from_float", "float_type", "float_parsing"}
#: Units by the endings of keys that name them.
_UNITS = {"eV": "eV", "m": "metres", "rad": "radians", "deg": "degrees", "px": "pixels", "s": "seconds"}


def sentence(error: ValidationError, data: object, model: type[BaseModel], prefix: str = "") -> str:
    """Return a sentence about the first thing to correct in data that a model refused.

    Unknown keys come first: a misspelt key is often also a missing one.

    Args:
        error: raised by the model.
        data: that was refused.
        model: that refused it.
        prefix: key of `data` itself.
    """
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    keys = _keys(first, data)
    path = ".".join([*([prefix] if prefix else []), *map(shown_key, keys)])
    if first["type"] in ("extra_forbidden", "no_such_attribute"):
        return unknown_key(path, known_keys(model, first["loc"][:-1]), () if prefix else places(model, str(keys[-1])))
    if first["type"] == "missing":
        return f"{path} is missing; add it to the recipe, or give it with --set {path}=VALUE."
    if first["type"] in ("frozen_instance", "frozen_field"):
        return f"{path} cannot be changed in options that are made; make new ones."
    context = first.get("ctx", {})
    if first["type"].startswith("union_tag"):
        kind = context["discriminator"].strip("'")
        path = f"{path}.{kind}" if isinstance(_at(data, keys), Mapping) else path
        expected = context.get("expected_tags") or ", ".join(_literals(model, first["loc"], kind))
        return unknown_word(path, context.get("tag"), [word.strip("' ") for word in expected.split(",")])
    raised = context.get("error")
    if isinstance(raised, PtymeshError):
        return str(raised)
    if raised is not None:
        return f"{path}: {raised}." if path else f"{str(raised)[:1].upper()}{str(raised)[1:]}."
    same = [e for e in errors if _keys(e, data) == keys]
    wanted_words = " or ".join(dict.fromkeys(_wanted(e, known_keys(model, e["loc"])) for e in same))
    wanted_words += _unit(keys) if {e["type"] for e in same} <= _NUMBERS else ""
    words = [word for e in same for word in _words(e)]
    value = first["input"]
    return f"{path or 'The recipe'} is {quote(value)}; it should be {wanted_words}{_nearest(value, words)}."


def shown_key(key: object) -> str:
    """Return a key for a message; an unusual one is quoted and shortened."""
    text = str(key)
    return text if text and text.isprintable() and len(text) <= 60 else quote(text)


def unknown_key(path: str, names: Iterable[str], elsewhere: Sequence[str] = ()) -> str:
    """Return a sentence about an unknown key.

    Args:
        path: full name of the key.
        names: keys that its group has.
        elsewhere: full names of keys with the same last part in other groups.
    """
    names = list(names)
    near = difflib.get_close_matches(path.rpartition(".")[2], names, n=1, cutoff=0.5)
    if len(elsewhere) in (1, 2) and path not in elsewhere:
        return f"{path} is unknown; did you mean {' or '.join(elsewhere)}?"
    if near:
        return f"{path} is unknown; did you mean {path.rpartition('.')[0]}{'.' if '.' in path else ''}{near[0]}?"
    return f"{path} is unknown; the keys here are {', '.join(names)}."


def unknown_word(path: str, value: object, names: Sequence[str]) -> str:
    """Return a sentence about a value that is none of the known words.

    Args:
        path: full name of the key.
        value: its value.
        names: allowed words.
    """
    words = " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
    return f"{path} is {quote(value)}; it should be {words}{_nearest(value, names)}."


def quote(value: object) -> str:
    """Return a value as the user wrote it, shortened."""
    if value is None:
        return "empty"
    try:
        text = repr(value) if isinstance(value, str) else " ".join(str(value).split())
    except ValueError:  # Python limits the digits of an integer that it prints
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def known_keys(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the keys allowed at pydantic's `location`, which consists of keys, list indices and branches of unions."""
    return list(dict.fromkeys(name for inner in _models_at(model, location) for name in inner.model_fields))


def places(model: type[BaseModel], name: str) -> list[str]:
    """Return the full names of the keys called `name` in the groups directly below `model`."""
    keys = []
    for group, field in model.model_fields.items():
        if any(name in below.model_fields for below in _models(field.annotation)):
            keys.append(f"{group}.0.{name}" if get_origin(field.annotation) is list else f"{group}.{name}")
    return keys


def _models_at(model: type[BaseModel], location: Sequence[str | int]) -> list[type[BaseModel]]:
    """Return the models at pydantic's `location`."""
    models = [model]
    for part in location:
        fields = [m.model_fields[part] for m in models if isinstance(part, str) and part in m.model_fields]
        if fields:
            models = [inner for field in fields for inner in _models(field.annotation)]
        else:  # an index, or the tag of a branch
            models = [
                m for m in models if any(part in get_args(f.annotation) for f in m.model_fields.values())
            ] or models
    return models


def _literals(model: type[BaseModel], location: Sequence[str | int], key: str) -> list[str]:
    """Return the words that the models at `location` allow for `key`."""
    return [word for m in _models_at(model, location) for word in get_args(m.model_fields[key].annotation)]


def _models(annotation: object) -> list[type[BaseModel]]:
    """Return the models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [inner for argument in get_args(annotation) for inner in _models(argument)]


def _keys(error: ErrorDetails, data: Any) -> list[str | int]:
    """Return the place of the error in the data's own keys.

    pydantic also names branches of unions, which are no keys.
    """
    keys: list[str | int] = []
    node = data
    for position, part in enumerate(error["loc"]):
        inside = isinstance(node, Mapping) and part in node
        inside = inside or (isinstance(node, list | tuple) and isinstance(part, int) and 0 <= part < len(node))
        if inside:
            keys.append(part)
            node = node[part]
        elif error["type"] == "missing" and position == len(error["loc"]) - 1:
            keys.append(part)
    return keys


def _at(data: Any, keys: Sequence[str | int]) -> Any:
    for key in keys:
        data = data[key]
    return data


def _wanted(error: ErrorDetails, below: Sequence[str]) -> str:
    """Return the value that pydantic expected, in words."""
    if error["type"] in ("model_type", "model_attributes_type") and below:
        return f"a group of keys ({', '.join(below[:6])}{' ...' if len(below) > 6 else ''})"
    if error["type"] in _PLAIN:
        return _PLAIN[error["type"]]
    if error["type"] in ("too_long", "too_short"):
        context = error["ctx"]
        limit = f"at most {context['max_length']}" if "max_length" in context else f"at least {context['min_length']}"
        return f"a list of {limit}, not of {context['actual_length']}"
    message = error["msg"]
    for start in ("Input should be ", "String should be "):
        message = message.removeprefix(start)
    return message[:1].lower() + message[1:]


def _unit(keys: Sequence[str | int]) -> str:
    """Return the unit in which a key expects its number, if its name says so."""
    name = next((key for key in reversed(keys) if isinstance(key, str)), "")
    unit = name.rpartition("_")[2]
    if "_" not in name or unit not in _UNITS:
        return ""
    quantity = quantity_of(name)
    rest = "without the unit" if quantity is None else f"or {quantity.request}"
    return f" in {_UNITS[unit]}, {rest}"


def _words(error: ErrorDetails) -> list[str]:
    expected = error.get("ctx", {}).get("expected", "")
    return [word.strip("' ") for part in str(expected).split(",") for word in part.split(" or ")]


def _nearest(value: object, words: Sequence[str]) -> str:
    if not isinstance(value, str):
        return ""
    lower = {word.lower(): word for word in words}
    near = difflib.get_close_matches(value.lower(), lower, n=1, cutoff=0.5)
    return f" (did you mean {lower[near[0]]}?)" if near else ""
