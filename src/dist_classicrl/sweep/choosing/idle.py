"""Settings that play no part in a study: those that it varies are refused, and of the others it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dist_classicrl.engines.engine import Layout, check_workers, engine_for
from dist_classicrl.engines.idle import idle_in_study, told
from dist_classicrl.environments.resolve import Source, with_exploring_starts
from dist_classicrl.errors import DistClassicRLError, SettingsError, StudyError
from dist_classicrl.learning.behavior_checks import check_behavior
from dist_classicrl.learning.rules import check_settings, check_source
from dist_classicrl.settings import Settings
from dist_classicrl.sweep.choosing.search import ends_of
from dist_classicrl.sweep.plan import checked_settings


def accepted(settings: Mapping[str, Any]) -> Settings:
    """Return the settings of a new variant; StudyError where they are none, or contradict each other."""
    made = checked_settings(settings)
    try:
        made.check_given()
    except SettingsError as error:
        raise StudyError(f"A variant cannot be trained: {error}") from error
    return made


def possible(common: Mapping[str, Any], vary: Mapping[str, Any]) -> list[Settings]:
    """Return settings that a search may come to, whatever it has drawn so far.

    StudyError where there are none.
    """
    given = [{**common, **each} for each in ends_of(vary)]
    found = []
    for each in given:
        with suppress(StudyError):  # the search may leave that combination out
            found.append(accepted(each))
    return found or [accepted(given[0])]


def check_part(
    made: Sequence[Settings], varied: Collection[str], looks: Collection[Source], is_search: bool = False
) -> str:
    """Return, in sentences, which settings that all variants share were given and play no part in any.

    StudyError where a varied setting plays none, so that its runs would come to the same again and again, or
    a variant cannot be trained: as its rule cannot, by a process alone, or in one of the environments. Those
    of a search, of which `made` has the ends, are refused for the rule where it can come to no other.
    """
    _check_possible(made, varied, looks, is_search)
    layouts = [
        Layout(is_compiled=look.simulator is not None, is_keyed=look.keys is not None) for look in looks
    ]
    idle: dict[str, str] | None = None
    for settings in made:
        try:
            engine = engine_for(settings, 1, settings.placement)
            check_workers(settings, 1, engine)
        except SettingsError as error:
            raise StudyError(
                "A variant cannot be trained, as each run of a study learns alone, on however many ranks the "
                f"study is made: {error}"
            ) from error
        for layout in set(layouts):
            found = idle_in_study(settings, engine, layout)
            idle = found if idle is None else {name: why for name, why in idle.items() if name in found}
    idle = idle or {}
    for name in varied:
        if name in idle:
            raise StudyError(
                f"vary has {name}, which plays no part {idle[name]} Whatever its value, the runs "
                "would come to the same."
            )
    return told(made[0], idle)


def _check_possible(
    made: Sequence[Settings], varied: Collection[str], looks: Collection[Source], is_search: bool
) -> None:
    """Raise StudyError where a rule cannot do what other settings ask for, or some cannot be in a problem.

    What a search may come to is refused where it can come to nothing else.
    """
    in_problems: dict[str, DistClassicRLError | None] = {}
    refusals = []
    for settings in made:
        alike = json.dumps(
            (settings.algorithm, settings.behavior, settings.initial_value, settings.exploring_starts)
        )
        if alike not in in_problems:
            errors = (_refusal(_check_in, settings, varied, source) for source in looks)
            in_problems[alike] = next(filter(None, errors), None)
        if error := _refusal(check_settings, settings) or in_problems[alike]:
            refusals.append(error)
    if refusals and not (is_search and len(refusals) < len(made)):
        advice = " Make a study of each part of the settings and problems that go together."
        raise StudyError(
            f"A variant cannot be trained: {refusals[0]}{advice if len(made) * len(looks) > 1 else ''}"
        ) from refusals[0]


def _check_in(settings: Settings, varied: Collection[str], source: Source) -> None:
    if settings.exploring_starts:
        with_exploring_starts(source)
    check_source(settings, source)
    if "use_action_mask" not in varied:  # which says what is legal
        check_behavior(source, settings, "local")


def _refusal(check: Callable[..., None], *given: Any) -> DistClassicRLError | None:
    """Return the error of this package that a check raises."""
    try:
        check(*given)
    except DistClassicRLError as error:
        return error
    except Exception:  # of a rule of one's own, maybe as this environment is closed: its runs will tell
        return None
    return None
