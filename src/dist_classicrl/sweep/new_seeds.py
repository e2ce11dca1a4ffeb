"""Settings of a study compared on seeds that it has not seen, until it is decided which are better."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dist_classicrl.errors import StudyError
from dist_classicrl.sweep.comparison import LEVEL, PERMUTATIONS
from dist_classicrl.sweep.folder import make_once
from dist_classicrl.sweep.plan import Plan
from dist_classicrl.sweep.progress import SweepProgress, check_call
from dist_classicrl.sweep.sequential import AdaStop, Verdict, is_names
from dist_classicrl.sweep.study import Study, check_one_scale
from dist_classicrl.sweep.sweep import Sweep

_FOLDER, _TEST = "new_seeds", "test.json"
_LONGEST_NAME = 255  # bytes, on Linux


def compare_on_new_seeds(
    sweep: Sweep,
    names: Sequence[str] | None = None,
    *,
    stages: int = 5,
    seeds_per_stage: int = 5,
    level: float = LEVEL,
    permutations: int = PERMUTATIONS,
    processes: int | None = None,
    progress: Callable[[SweepProgress], Any] | None = None,
    retry_failed: bool = False,
) -> dict[tuple[str, str], Verdict]:
    """Run settings of a study with new seeds, stage by stage, until `AdaStop` has decided all pairs.

    The seeds of the study itself do not count: whoever names settings to compare has seen their scores, and
    early stopping has chosen by them. The new ones follow the largest of those, and of those of other
    comparisons of the study; all runs have all steps.
    Killed and called again, on as many processes and ranks as there are, it goes on to the same verdicts.

    Parameters
    ----------
    sweep : Sweep
        Of the study, whose runs need not all be made.
    names : sequence of str, optional
        Settings as `Study.name_of` has them, in any order; by default all that the study has and that were
        not stopped.
    stages, seeds_per_stage, level, permutations
        Those of `AdaStop`. A comparison that was begun keeps its own.
    processes, progress, retry_failed
        Those of `Sweep.run`, for each stage.

    Raises
    ------
    StudyError
        If a name is unknown, so few seeds can show nothing, the comparison was begun with other numbers, a
        run fails, scores of several environments are returns, or an argument is none of those above.
    """
    if not isinstance(sweep, Sweep):
        raise StudyError(
            f"A comparison on new seeds is made by the Sweep of the study, got {sweep!r}. Give that."
        )
    if names is not None and not is_names(names):
        raise StudyError(
            f"names must be a list of settings as Study.name_of has them, or None, got {names!r}."
        )
    check_call(processes, progress, retry_failed)
    sweep.begin()
    study = Study(sweep.folder)
    variants = {study.name_of(number): number for number in study.variants()}
    left_out = study.left_out()
    chosen = list(names) if names is not None else [name for name in variants if name not in left_out]
    unknown = [name for name in chosen if name not in variants]
    if unknown:
        raise StudyError(f"The study has no settings {unknown[0]!r}. It has {', '.join(variants)}.")
    chosen.sort(key=variants.__getitem__)  # however they are typed, they are the same comparison
    test = AdaStop(chosen, stages, seeds_per_stage, level, permutations)
    test.check_power(len(study.plan.environments))
    folder = sweep.folder / _FOLDER / _name_of([variants[name] for name in chosen])
    asked = {
        "stages": stages,
        "seeds_per_stage": seeds_per_stage,
        "level": level,
        "permutations": permutations,
    }
    first_seed = _begin(folder, chosen, asked, study.plan)
    stage = 0
    while needed := test.undecided:
        begin = first_seed + stage * seeds_per_stage
        part = sweep.part(
            [study.plan.variants[variants[name]] for name in needed],
            range(begin, begin + seeds_per_stage),
            folder / f"stage-{stage}",
        )
        made = part.run(processes, progress, retry_failed)
        if failed := [row for row in made.rows() if row["error"] is not None]:
            raise StudyError(
                f"{len(failed):,} of the {len(made.rows()):,} runs of stage {stage} in {made.folder} failed, "
                f"and without them nothing can be decided. The first: {failed[0]['error']} Make them once "
                "more with --retry-failed, or retry_failed=True."
            )
        check_one_scale(made)
        # By their places: settings have other names where fewer are beside them.
        scores: dict[str, Any] = {name: {task: [] for task in made.environments} for name in needed}
        for row in made.rows():
            scores[needed[row["variant"]]][row["environment"]].append(row["score"])
        test.add(scores)
        stage += 1
    return test.verdicts


def _name_of(numbers: Sequence[int]) -> str:
    """Return what the folder of a comparison of these settings is called: by their numbers."""
    name = "-".join(map(str, numbers))
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{len(numbers)}-settings-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def _begin(folder: Path, names: Sequence[str], numbers: dict[str, Any], plan: Plan) -> int:
    """Write down what a comparison was begun with; StudyError if it was with other numbers.

    Its settings are those of which the folder has the numbers: by name they were others in earlier versions.
    Return its first seed, which is above all that the study had then: no other comparison of the study has
    any of its seeds either, since what is compared may have been chosen by what came out there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first_seed, of_old = max(plan.seeds) + 1, max(plan.seeds[: plan.begun_with]) + 1
    others = [path for path in folder.parent.glob(f"*/{_TEST}") if path.parent != folder]
    begun = [_read(path, of_old) for path in others]
    ends = [each["first_seed"] + each["stages"] * each["seeds_per_stage"] for each in begun]
    after = max([first_seed, *ends])
    path = folder / _TEST
    with suppress(FileExistsError):
        begun_with = {**numbers, "settings": sorted(names), "first_seed": after}
        make_once(path, json.dumps(begun_with, sort_keys=True))
    there = _read(path, of_old)
    first = there.pop("first_seed")
    changed = [f"{name}={there.get(name)}" for name in numbers if there.get(name) != numbers[name]]
    if changed:
        end = max([first_seed, first + there["stages"] * there["seeds_per_stage"], *ends])
        raise StudyError(
            f"This comparison was begun with {', '.join(changed)}. To change that after a look at scores "
            "would raise its share of false alarms, also without its folder, since the same seeds give the "
            "same scores. Give the same, or make a study in another folder whose seeds are "
            f"{end} and more: a comparison there has seeds that nobody has seen."
        )
    return first


def _read(path: Path, first_seed: int) -> dict[str, Any]:
    """Return what a comparison was begun with; those of earlier versions began with this seed."""
    try:
        there = {"first_seed": first_seed, **json.loads(path.read_bytes())}
        if not all(isinstance(there.get(name), int) for name in ("first_seed", "stages", "seeds_per_stage")):
            raise ValueError("it does not say which seeds it has")
    except (ValueError, TypeError) as error:
        raise StudyError(f"{path} is damaged ({error}).") from error
    return there
