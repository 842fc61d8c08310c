"""`steppe compare`: whether one run, or group of runs, is better than another, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from steppe.cli.place import DataRootOption, check_device
from steppe.cli.show import ForceOption, JsonOption, console, errors, json_text, print_json
from steppe.errors import RunError
from steppe.runs import find_runs, json_of, split_group

if TYPE_CHECKING:
    from steppe.studies.versus import Difference, Versus

COMPARISON = json_of("a comparison", "steppe compare")
UNPAIRED = "nothing is paired, neither images nor seeds: A and B are taken as independent"
_WHAT = "a run folder, a folder of runs that differ in their seed, or FOLDER:LABEL=VALUE,… of a study"


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_WHAT)],
    b: Annotated[str, typer.Argument(metavar="B", help="the same, to be compared with A")],
    data_root: DataRootOption = None,
    device: Annotated[
        str | None, typer.Option(help="to make missing answers on: cpu, cuda …", callback=check_device)
    ] = None,
    draws: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="so many draws of the bootstrap over test images")
    ] = 10_000,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="take A and B as independent: they may be tested on different images")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="also write all of it there, as JSON")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Say whether B is better than A on their test set, with 95 % intervals over seeds and over images.

    Both have to be tested on the same images, unless --unpaired is given.
    """
    for name in (a, b):
        find_runs([split_group(name)[0]])
    if out is not None:
        COMPARISON.check(out, force=force)
    from steppe.studies.groups import find_group
    from steppe.studies.versus import compare_groups

    def tell(words: str) -> None:
        errors.print(words, markup=False, soft_wrap=True)

    groups = [find_group(name, data_root=data_root, device=device, tell=tell) for name in (a, b)]
    try:
        found = compare_groups(*groups, draws=draws, paired=not unpaired)
    except ValueError as error:
        fix = "compare runs of the same data set, size and split_seed, or say --unpaired to leave the pairing out"
        fix = fix if not unpaired else "name runs that were tested on the same images on each side"
        raise RunError(str(error), where=f"{a} and {b}", fix=fix) from None
    if json:
        print_json(_as_json(found))
    else:
        _print(found)
    if out is not None:
        COMPARISON.write(out, json_text(_as_json(found)) + "\n", force=force)
        console.print(f"written: {out}", markup=False, soft_wrap=True)


def _print(found: Versus) -> None:
    from steppe.studies.versus import name_seeds

    for letter, group in (("A", found.a), ("B", found.b)):
        console.print(f"{letter}: {group.name} ({name_seeds(list(group.runs))})", markup=False, soft_wrap=True)
    table = Table("on the test set", "accuracy, %", "NLL", box=None, header_style="bold")
    columns = zip(_column(found.accuracy, 100, 2), _column(found.nll, 1, 4), strict=True)
    paired = ", paired" if found.accuracy.paired and not found.one_seed else ""
    names = ("A", "B", "B − A", "95 % over images", f"95 % over seeds{paired}", "95 % over both")
    for name, words in zip(names, columns, strict=True):
        table.add_row(name, *(Text(word) for word in words))
    console.print(table)
    right = f"{found.only_a} images are right in A alone, {found.only_b} in B alone"
    right += " (median over pairs)" if len(found.a.runs) + len(found.b.runs) > 2 else ""
    console.print(right if found.by_image else UNPAIRED, markup=False, soft_wrap=True)
    console.print(Text(conclude(found), style="bold"), soft_wrap=True)


def conclude(found: Versus) -> str:
    """The answer in a sentence, and what it does not say.

    Args:
        found: the comparison.
    """
    if found.alike:
        return "A and B answer every test image alike: there is nothing to decide."
    accuracy = found.accuracy
    low, high = (_signed(100 * bound, 2) for bound in accuracy.interval)
    caveat = ""
    if found.one_seed:
        caveat = " A group of one run says nothing of other seeds: one of them may turn it round."
    elif accuracy.stuck:
        caveat = " All seeds give the same difference, so how far others would scatter is not known."
    if not accuracy.shown:
        apart = _signed(100 * accuracy.difference, 2)
        return f"Undecided: B − A is {apart} points, but the 95 % interval holds zero ({low} to {high}).{caveat}"
    way = "better" if accuracy.difference > 0 else "worse"
    return f"B is {way} than A by {abs(100 * accuracy.difference):.2f} points (95 %: {low} to {high}).{caveat}"


def _column(found: Difference, scale: float, places: int) -> list[str]:
    def interval(bounds: tuple[float, float] | None) -> str:
        return "–" if bounds is None else " to ".join(_signed(scale * bound, places) for bound in bounds)

    numbers = [f"{scale * found.a:.{places}f}", f"{scale * found.b:.{places}f}"]
    seeds = "– (all the same)" if found.stuck else interval(found.seeds)
    both = interval(None if found.stuck else found.both)
    return [*numbers, _signed(scale * found.difference, places), interval(found.images), seeds, both]


def _signed(value: float, places: int) -> str:
    """With its sign, as B − A has it: "+1.11", "−1.11"."""
    return f"{round(value, places) + 0.0:+.{places}f}".replace("-", "−")


def _as_json(found: Versus) -> dict[str, Any]:
    def difference(one: Difference) -> dict[str, Any]:
        keys = ("a", "b", "difference", "images", "seeds", "both", "paired")
        return {key: getattr(one, key) for key in keys}

    return {
        "made_by": "steppe compare",
        **{key: {"name": g.name, "seeds": sorted(g.runs)} for key, g in (("a", found.a), ("b", found.b))},
        "accuracy": difference(found.accuracy),
        "nll": difference(found.nll),
        "paired_images": found.by_image,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "conclusion": conclude(found),
    }
