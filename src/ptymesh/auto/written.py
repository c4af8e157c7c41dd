"""A recipe as a person would have written it: what departs from the defaults, and why, in comments."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

from ptymesh.run.recipe import Recipe

NAME = "recipe.yaml"
HEAD = """\
# Written by ptymesh, which chose what stands under a comment. `ptymesh run THIS_FILE --out FOLDER` repeats the run,
# to the last bit. Any line may be changed.
"""
#: Said of every recipe, whether it departs from a default or not: what later defaults must not change.
ALWAYS = ("seed", "precision")
WIDTH = 110


def written(recipe: Recipe, reasons: dict[str, list[str]]) -> str:
    """The YAML text; reasons by key, such as `data.centre` or `probe.modes`, stand above what they explain."""
    left = {key: list(sentences) for key, sentences in reasons.items()}
    lines = [HEAD.rstrip("\n")]
    raw = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"stages", "auto"})
    raw |= {name: getattr(recipe, name) for name in ALWAYS}
    for name in type(recipe).model_fields:
        if name == "stages":
            lines += _comments("stages", left, "")
            lines.append("stages:")
            for stage in recipe.stages:
                said = stage.model_dump(mode="json", exclude_defaults=True)
                plain = {"engine": stage.name, "epochs": stage.epochs, "batch": stage.batch, **said}
                lines.append(f"  - {_flow(plain)}")
        elif name in raw:
            lines += _entry(name, raw[name], name, left, "")
    return "\n".join(lines) + "\n"


def _entry(name: str, value: Any, key: str, left: dict[str, list[str]], indent: str) -> list[str]:
    lines = _comments(key, left, indent)
    below = {other for other in left if other.startswith(f"{key}.")}
    if isinstance(value, dict) and value:
        lines.append(f"{indent}{name}:")
        for inner, one in value.items():
            lines += _entry(inner, one, f"{key}.{inner}", left, indent + "  ")
        for other in sorted(below & left.keys()):  # chosen as it is by default
            lines += _comments(other, left, indent + "  ", other)
        return lines
    return [*lines, f"{indent}{name}: {_flow(value)}"]


def _comments(key: str, left: dict[str, list[str]], indent: str, named: str = "") -> list[str]:
    lines = []
    for sentence in left.pop(key, []):
        text = f"{named}: {sentence}" if named else sentence
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_long_words=False
        )
    return lines


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")
