"""Seeds that were added to a study: the plan in its folder stays, and each addition is a file beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_classicrl._words import counted
from dist_classicrl.errors import StudyError
from dist_classicrl.sweep.kept.differences import said, shown_seeds
from dist_classicrl.sweep.kept.reading import read_kept
from dist_classicrl.sweep.plan import checked_seeds

MORE_SEEDS = "more_seeds"  # a folder of lists, each of which is named by how many seeds there were before


def addition(folder: Path, before: int) -> Path:
    """Return the file of the seeds that were added when a study had so many."""
    return folder / MORE_SEEDS / f"{before}.json"


def seeds_after(folder: Path, seeds: Sequence[int]) -> list[int]:
    """Return the seeds that were added to a study when it had these; none where it still has."""
    path = addition(folder, len(seeds))
    if (data := read_kept(path)) is None:
        return []
    try:
        more: list[int] = json.loads(data)
        if not isinstance(more, list) or set(checked_seeds(more)) & set(seeds):
            raise ValueError("no list of other seeds")
    except ValueError as error:
        raise StudyError(
            f"{path} is damaged ({error}). Remove it, and add its seeds once more: runs that are made stay."
        ) from error
    return more


def with_added(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan with all seeds, and as `added` how many there were each time that others were added."""
    seeds, added = plan.get("seeds", []), []
    if not isinstance(seeds, list) or not all(isinstance(seed, int) for seed in seeds):
        raise StudyError(f"The plan of the study in {folder} is damaged: its seeds are {seeds!r:.100}.")
    while more := seeds_after(folder, seeds):
        added.append(len(seeds))
        seeds = [*seeds, *more]
    return plan | {"seeds": seeds, "added": added} if added else plan


def new_seeds(folder: Path, there: Mapping[str, Any], asked: Sequence[int]) -> list[int]:
    """Return which of these seeds a study has not; StudyError where it has others, or can get none."""
    known = there.get("seeds", [])
    every = list(dict.fromkeys([*known, *asked]))
    if len(every) == len(known) == len(asked):
        return []
    other = said("seeds", known, list(asked))
    if why := why_no_others(there.get("search"), there.get("stopping")):
        raise StudyError(
            f"The study in {folder} keeps its seeds ({other}): {why}. Give seeds={shown_seeds(known)} to go "
            "on with it, or another folder for a study with those. New seeds of settings that it has found "
            f"are run by `dist-classicrl compare {folder} --until-significant`, in a script by "
            "compare_on_new_seeds."
        )
    if lost := len(every) - len(asked):
        undone = ""
        if "added" in there:
            undone = (
                f" What was added last is left out again once {addition(folder, there['added'][-1])} is "
                "removed, while nobody works there: its runs stay, and count when it is added once more."
            )
        raise StudyError(
            f"The study in {folder} has {counted(lost, 'seed')} that would be left out ({other}), and keeps "
            f"what it has. Give seeds={shown_seeds(every)}, or another folder for a study of its own.{undone}"
        )
    return every[len(known) :]


def why_no_others(search: Any, stopping: Any) -> str | None:
    """Return what a study has already done by the scores of its seeds; None where seeds can be added."""
    if search:
        return "by their scores its settings were proposed, and by those of others they would be other ones"
    if stopping:
        return "by their scores settings are stopped early, and by those of others they would be other ones"
    return None
