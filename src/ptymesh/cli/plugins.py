"""ptymesh plugins: kinds of plug-ins, and the plug-ins that are installed."""

from __future__ import annotations

import typer


def command() -> None:
    """List what can be plugged in (engines, readers, probe starts, writers ...): ptymesh's own and other packages'.

    What a package offers is imported, so that what does not work is told here. Status 2 where something does not.
    """
    import ptymesh.engines.gradients.losses
    import ptymesh.engines.gradients.regularisers
    import ptymesh.io.load
    import ptymesh.physics.object_models
    import ptymesh.recipe.starts
    import ptymesh.recipe.writers  # noqa: F401 - each has its registry
    from ptymesh.errors import BadInput
    from ptymesh.registry import Registry

    typer.echo("A package offers NAME by an entry point of the group ptymesh.engines, ptymesh.models and so on.")
    broken = 0
    for group, registry in sorted(Registry.all.items()):
        names = ", ".join([*registry.also, *registry])
        typer.echo(f"{group.removeprefix('ptymesh.')}: {names or 'those of ptymesh are keys of probe and object'}")
        for point in registry.offered():
            note = ""
            if point.name in registry:
                note = "  not used: ptymesh has one of this name; offer it under another"
            else:
                try:
                    registry.load(point)
                except BadInput as error:
                    broken, note = broken + 1, f"  {error}"
            package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
            typer.echo(f"  {point.name} = {point.value}{package}{note}")
    if broken:
        raise BadInput(f"{broken} of what packages offer cannot be used; see above.")
