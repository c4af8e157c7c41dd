"""Writer of recipes as a person would write them: what departs from the defaults, with the reasons as comments."""

from __future__ import annotations

import textwrap

import yaml

from ptymesh.recipe.schema import Recipe

#: Name of the recipe's file in the output folder.
NAME = "recipe.yaml"
#: First lines of the file.
HEAD = """\
# Written by ptymesh, which chose what stands under a comment. `ptymesh run THIS_FILE --out FOLDER` repeats the run,
# to the last bit. Any line may be changed.
"""
#: Keys that are always written, so that later defaults do not change them.
ALWAYS = ("seed", "precision")
#: Letters in a line of comment, at most.
WIDTH = 110


def recipe_text(recipe: Recipe, reasons: dict[str, list[str]]) -> str:
    """Return the YAML text of a recipe; reasons, by key such as `probe.modes`, stand above what they explain."""
    reasons_left = {key: list(sentences) for key, sentences in reasons.items()}
    lines = [HEAD.rstrip("\n")]
    raw = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"stages", "auto"})
    raw |= {name: getattr(recipe, name) for name in ALWAYS}
    for name in type(recipe).model_fields:
        if name == "stages":
            lines += _comments("stages", reasons_left, "")
            lines.append("stages:")
            for stage in recipe.stages:
                options = stage.model_dump(mode="json", exclude_defaults=True)
                plain = {"engine": stage.name, "epochs": stage.epochs, "batch": stage.batch, **options}
                lines.append(f"  - {_flow(plain)}")
        elif name in raw:
            lines += _entry(name, raw[name], name, reasons_left, "")
    return "\n".join(lines) + "\n"


def _entry(name: str, value: object, key: str, reasons_left: dict[str, list[str]], indent: str) -> list[str]:
    """Return the lines of one key with all below it, and take its reasons out of `reasons_left`."""
    lines = _comments(key, reasons_left, indent)
    below = {other for other in reasons_left if other.startswith(f"{key}.")}
    if isinstance(value, dict) and value:
        lines.append(f"{indent}{name}:")
        for inner, one in value.items():
            lines += _entry(inner, one, f"{key}.{inner}", reasons_left, indent + "  ")
        for other in sorted(below & reasons_left.keys()):  # keys that have reasons and their default values
            lines += _comments(other, reasons_left, indent + "  ", other)
        return lines
    return [*lines, f"{indent}{name}: {_flow(value)}"]


def _comments(key: str, reasons_left: dict[str, list[str]], indent: str, named: str = "") -> list[str]:
    """Return a key's reasons as lines of comment, each begun with `named` if given, and take them from those left."""
    lines = []
    for sentence in reasons_left.pop(key, []):
        text = f"{named}: {sentence}" if named else sentence
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_long_words=False
        )
    return lines


def _flow(value: object) -> str:
    """Return a value in YAML's flow style, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")
