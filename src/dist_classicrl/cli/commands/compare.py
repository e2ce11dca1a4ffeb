"""`dist-classicrl compare`: which settings of a study are better, and how sure that is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dist_classicrl.cli import output
from dist_classicrl.errors import StudyError

if TYPE_CHECKING:
    from dist_classicrl.sweep.comparison import Comparison

_MOST_SETTINGS = 12  # 66 pairs

_HELP = f"""\
Compare settings of a study: which are better, and how sure that is.

FOLDER is what `dist-classicrl sweep` has written. FIRST and SECOND are settings as its table names them; by
default each pair is compared, where there are at most {_MOST_SETTINGS}, and p-values are corrected by Holm.

\b
difference   of the interquartile means of the scores, over all
             environments, with a 95 % bootstrap interval
improvement  probability that a run of the first scores higher
p            of a permutation test, corrected

\b
  dist-classicrl sweep study.toml --out studies/lake
  dist-classicrl compare studies/lake
"""


@click.command("compare", help=_HELP)
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER")
@click.argument("first", required=False)
@click.argument("second", required=False)
@click.option(
    "--level", type=float, default=0.05, show_default=True, help="Of p, below which settings differ."
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of tables.")
def command(folder: Path, first: str | None, second: str | None, level: float, as_json: bool) -> None:
    """Compare settings of a study: which are better, and how sure that is."""
    from dist_classicrl.sweep.comparison import compare, compare_all
    from dist_classicrl.sweep.study import Study

    study = Study(folder)
    scores, bounds = study.scores(), study.bounds
    if first is not None:
        if second is None:
            raise click.UsageError(f"With what is {first!r} to be compared? Give SECOND, too, or neither.")
        found = [compare(scores, first, second, bounds=bounds, level=level)]
    else:
        names = {name for each in scores.values() for name in each}
        if len(names) > _MOST_SETTINGS:
            raise StudyError(
                f"{folder} has {len(names)} settings, and so many pairs take long and tell little. Give two "
                "of them as FIRST and SECOND, as the table of `dist-classicrl sweep` names them."
            )
        found = compare_all(scores, bounds=bounds, level=level)
    if as_json:
        output.show_json({"comparisons": [{**asdict(each), "better": each.better} for each in found]})
        return
    _show(found)


def _show(found: list[Comparison]) -> None:
    summaries = {each.name: each for one in found for each in (one.first, one.second)}
    rows = [
        [
            each.name,
            str(each.runs),
            str(each.iqm),
            "-" if each.optimality_gap is None else str(each.optimality_gap),
        ]
        for each in summaries.values()
    ]
    output.show_table(["settings", "runs", "interquartile mean", "optimality gap"], rows)
    click.echo()
    rows = [
        [
            one.first.name,
            one.second.name,
            str(one.difference),
            f"{one.probability_of_improvement.value:.2f}",
            f"{one.adjusted_p_value:.4f}",
            one.better or "no difference found",
        ]
        for one in found
    ]
    output.show_table(["first", "second", "difference", "improvement", "p", "better"], rows)
