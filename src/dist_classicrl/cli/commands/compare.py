"""`dist-classicrl compare`: which settings of a study are better, and how sure that is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_classicrl._hints import rank_of_environment
from dist_classicrl._words import counted
from dist_classicrl.cli import output
from dist_classicrl.cli.option_types import Place
from dist_classicrl.errors import StudyError

if TYPE_CHECKING:
    from dist_classicrl.sweep.comparison import Comparison
    from dist_classicrl.sweep.study import Study

_MOST_SETTINGS = 12  # 66 pairs
_MOST_REASONS = 5  # of an error

_HELP = f"""\
Compare settings of a study: which are better, and how sure that is.

FOLDER is what `dist-classicrl sweep` has written. FIRST and SECOND are settings as its table names them; by
default each pair is compared, where there are at most {_MOST_SETTINGS}, and p-values are corrected by Holm.

\b
difference   of the interquartile means of the scores, over all
             environments, with a 95 % bootstrap interval
improvement  probability that a run of the first scores higher
p            of a permutation test, corrected
better       or that no difference was found, or that with so few
             seeds and so many pairs none could have been

With --until-significant the settings are run with new seeds, in stages, until a sequential test (AdaStop) has
decided each pair or the stages are spent; the scores of the study itself do not count. With probability
1 - level no equal pair is called different, however many there are. Killed and typed again it goes on, and it
runs on ranks as `dist-classicrl sweep` does.

\b
  dist-classicrl sweep study.toml --out studies/lake
  dist-classicrl compare studies/lake
  dist-classicrl compare studies/lake --until-significant --stages 4
"""


@click.command("compare", help=_HELP)
@click.argument("folder", type=Place(path_type=Path), metavar="FOLDER")
@click.argument("first", required=False)
@click.argument("second", required=False)
@click.option(
    "--level", type=float, default=0.05, show_default=True, help="Of p, below which settings differ."
)
@click.option("--until-significant", is_flag=True, help="Run new seeds, in stages, until all is decided.")
@click.option("--stages", type=click.IntRange(1), metavar="N", help="At most so many.  [default: 5]")
@click.option("--seeds-per-stage", type=click.IntRange(2), metavar="N", help="Of each setting.  [default: 5]")
@click.option("--processes", type=click.IntRange(1), metavar="N", help="As of `dist-classicrl sweep`.")
@click.option("--retry-failed", is_flag=True, help="Make new runs that have failed once more.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of tables.")
def command(
    folder: Path,
    first: str | None,
    second: str | None,
    level: float,
    until_significant: bool,
    stages: int | None,
    seeds_per_stage: int | None,
    processes: int | None,
    retry_failed: bool,
    as_json: bool,
) -> None:
    """Compare settings of a study: which are better, and how sure that is."""
    from dist_classicrl.sweep.study import Study

    if first is not None and second is None:
        raise click.UsageError(f"With what is {first!r} to be compared? Give SECOND, too, or neither.")
    if not until_significant and (stages or seeds_per_stage or processes or retry_failed):
        raise click.UsageError(
            "--stages, --seeds-per-stage, --processes and --retry-failed belong to --until-significant. "
            "Add it, or leave them out."
        )
    study = Study(folder)
    left_out = study.left_out()
    names = [name for name in map(study.name_of, study.variants()) if name not in left_out]
    if first is not None and second is not None:
        names = [first, second]
    if len(names) > _MOST_SETTINGS:
        raise StudyError(
            f"{folder} has {len(names)} settings, and so many pairs take long and tell little. Give two "
            "of them as FIRST and SECOND, as the table of `dist-classicrl sweep` names them."
        )
    if len(names) < 2:
        raise StudyError(_too_few(folder, names, left_out))
    if until_significant:
        limits = {"stages": stages or 5, "seeds_per_stage": seeds_per_stage or 5, "level": level}
        _run_more(folder, names, limits, processes, retry_failed, as_json)
        return
    for name in (first, second):
        if name in left_out:
            raise StudyError(
                f"{name!r} cannot be compared by its scores: {left_out[name]}. Add --until-significant, "
                "which runs new seeds of both with all steps."
            )
    from dist_classicrl.sweep.comparison import caution, compare, compare_all
    from dist_classicrl.sweep.study import check_one_scale

    scores, bounds = study.scores(), study.bounds
    check_one_scale(study)
    if first is not None and second is not None:
        found = [compare(scores, first, second, bounds=bounds, level=level)]
    else:
        whole = {task: {name: each[name] for name in names} for task, each in scores.items()}
        found = compare_all(whole, bounds=bounds, level=level)
    if as_json:
        told = [{**asdict(each), "better": each.better} for each in found]
        output.show_json({"comparisons": told, "left_out": left_out, "seeds": study.whole_seeds})
        return
    _show(found)
    seeds, note = study.whole_seeds, caution(study.whole_seeds)
    if under_way := len(study.plan.seeds) - seeds:
        click.echo(
            f"\nThese are scores of the first {counted(seeds, 'seed')}. Of {under_way:,} more, which were "
            "added, runs are missing: `dist-classicrl sweep` makes them."
        )
    if note:
        click.echo(f"\n{note}")
    if (note or any(one.undecidable for one in found)) and study.can_grow:
        click.echo(
            "\nWith more seeds in the study's file `dist-classicrl sweep` makes the runs that are missing."
        )
    _tell_of(left_out, study)


def _too_few(folder: Path, names: list[str], left_out: dict[str, str]) -> str:
    """Return why there is nothing to compare, and what to do about it."""
    said = f"Comparing needs two settings with all runs, and {folder} has {names[0] if names else 'none'}"
    if not left_out:
        return f"{said} alone. Give a setting several values below [vary] in the file of a study."
    why = "; ".join(f"{name}: {reason}" for name, reason in [*left_out.items()][:_MOST_REASONS])
    more = "; ..." if len(left_out) > _MOST_REASONS else ""
    return (
        f"{said}. Left out are {why}{more}. Type `dist-classicrl sweep` again where runs are missing, with "
        "--retry-failed where some failed, or name two of them as FIRST and SECOND with --until-significant, "
        "which runs new seeds of both with all steps."
    )


def _tell_of(left_out: dict[str, str], study: Study) -> None:
    if left_out:
        click.echo("\nNot compared:")
        for name, why in left_out.items():
            click.echo(f"  {name}: {why}")
    if study.plan.stopping is not None:
        click.echo(
            "\nThe settings above were chosen by scores of earlier runs with the same seeds, so their scores "
            "are a little flattering, alike for all. With --until-significant new seeds are run."
        )


def _run_more(
    folder: Path,
    names: list[str],
    limits: dict[str, Any],
    processes: int | None,
    retry_failed: bool,
    as_json: bool,
) -> None:
    from dist_classicrl.cli.shown_study import teller
    from dist_classicrl.cli.study_file import sweep_of
    from dist_classicrl.sweep.new_seeds import compare_on_new_seeds

    is_speaker = not rank_of_environment()
    found = compare_on_new_seeds(
        sweep_of(folder),
        names,
        **limits,
        processes=processes,
        progress=teller() if is_speaker else None,
        retry_failed=retry_failed,
    )
    if not is_speaker:
        return
    if as_json:
        told = [{"first": a, "second": b, **asdict(verdict)} for (a, b), verdict in found.items()]
        output.show_json({"verdicts": told})
        return
    rows = [
        [a, b, f"{verdict.difference:.4g}", str(verdict.seeds), verdict.better or verdict.outcome]
        for (a, b), verdict in found.items()
    ]
    output.show_table(["first", "second", "difference", "new seeds", "better"], rows)
    for why in dict.fromkeys(verdict.undecidable for verdict in found.values() if verdict.undecidable):
        click.echo(f"\nA difference {why}.")


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
            one.better or ("cannot be decided" if one.undecidable else "no difference found"),
        ]
        for one in found
    ]
    output.show_table(["first", "second", "difference", "improvement", "p", "better"], rows)
    for why in dict.fromkeys(one.undecidable for one in found if one.undecidable and not one.better):
        click.echo(f"\nA difference {why}.")
