"""`steppe recipes`: what each recipe is for, and what it reaches in which time, where that was measured."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli.show import JsonOption, console, print_json
from steppe.config.recipes import Recipe, RecipeConfig, list_recipes, load_recipe

NOT_MEASURED = "not measured yet"


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            help="print the file of this recipe",
            autocompletion=lambda incomplete: [name for name in list_recipes() if name.startswith(incomplete)],
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the recipes with what they reach; `steppe train --recipe NAME` runs one."""
    if name is not None:
        recipe = load_recipe(name)
        if json:
            print_json(_values(recipe) | {"config": recipe.config.model_dump(mode="json", exclude_none=True)})
        else:
            console.print(recipe.path.read_text().rstrip(), markup=False, soft_wrap=True)
        return
    known = [load_recipe(path) for path in list_recipes().values()]
    if json:
        print_json([_values(recipe) for recipe in known])
        return
    table = Table(box=None, header_style="bold")
    table.add_column("recipe", no_wrap=True)
    for title in ("reaches", "in", "what it is"):
        table.add_column(title)
    for recipe in known:
        words = (recipe.name, reaches(recipe.about), took(recipe.about), recipe.about.title)
        table.add_row(*map(Text, words))
    console.print(table)


def reaches(about: RecipeConfig) -> str:
    """Say which test accuracy a recipe reaches, over how many runs, such as "94.02 ± 0.11 % (10 runs)"."""
    if about.accuracy is None:
        return NOT_MEASURED
    std = "" if about.std is None else f" ± {about.std:.2f}"
    augmented = "" if about.accuracy_tta is None else f", {about.accuracy_tta:.2f} % with TTA"
    return f"{about.accuracy:.2f}{std} %{augmented} ({about.runs} run{'' if about.runs == 1 else 's'})"


def took(about: RecipeConfig) -> str:
    """Say how long the training of a recipe took, and on what."""
    return "" if about.seconds is None else f"{about.seconds:.3g} s on {about.machine}"


def _values(recipe: Recipe) -> dict[str, Any]:
    return {"recipe": recipe.name, "data": recipe.data, **recipe.about.model_dump(), "file": recipe.path}
