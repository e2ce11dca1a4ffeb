"""`Sweep`: settings times seeds, divided among processes, hosts and jobs."""

from __future__ import annotations

import gc
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from dist_classicrl._arguments import named_constructor
from dist_classicrl._hints import is_one_of_several, task_of_environment, usable_cores
from dist_classicrl.checkpoint.plan import SIGNALS, checked_signals
from dist_classicrl.checks import checked_path, is_whole
from dist_classicrl.environments.stepped.description import plain
from dist_classicrl.errors import StudyError, SweepStopped, TrainingInterrupted, TrainingStopped
from dist_classicrl.process.stop import INTERRUPTED, EndingWatch, Stop, with_launchers
from dist_classicrl.sweep.arrivals import Arrivals
from dist_classicrl.sweep.choosing.halving import SuccessiveHalving
from dist_classicrl.sweep.choosing.idle import accepted, check_part, possible
from dist_classicrl.sweep.choosing.sampling import SAMPLERS, Told, proposed, require_optuna, values_of
from dist_classicrl.sweep.choosing.search import Range, n_tried, variants
from dist_classicrl.sweep.folder import Member, StudyFolder
from dist_classicrl.sweep.hosts.compiling import once_on_each_host
from dist_classicrl.sweep.hosts.processes import helpers
from dist_classicrl.sweep.hosts.run_maker import RunMaker
from dist_classicrl.sweep.kept.environment_code import changed_code, code_of
from dist_classicrl.sweep.making import Making
from dist_classicrl.sweep.plan import (
    MOST_RUNS,
    STEPPED_COST,
    Plan,
    checked_seeds,
    checked_settings,
    described,
)
from dist_classicrl.sweep.progress import ShownSweep, SweepProgress, check_call
from dist_classicrl.sweep.study import Study, of_several_scales, scale_changers
from dist_classicrl.sweep.trial import can_be_solved, looked_at

if TYPE_CHECKING:
    from dist_classicrl.environments.resolve import EnvLike, Source

logger = logging.getLogger(__name__)


@named_constructor(
    environments="env",
    grid="vary",
    n_eval_episodes="eval_episodes",
    n_points="points",
    n_seeds="seeds",
    n_trials="n_variants",
    num_seeds="seeds",
    seed="seeds",
)
class Sweep:
    """Many trainings: environments times settings times seeds, each alone on one core, or in a card's thread.

    Runs are divided among processes by a folder, without a server: helper processes of this one, the ranks of
    an MPI job, the tasks of a SLURM array, several hosts at once. Processes may die, leave and come. A sweep
    that was killed goes on when it is made and run again with the same folder, and ends with the same table,
    byte for byte.

    Parameters
    ----------
    env : str, EnvLike, sequence of str, or mapping of str to EnvLike
        What `DistAsyncQLearning.train` takes, or a name as `dist-classicrl train` takes it; several as a list
        of names, or each by a name of its own. Results have them in the order of their names.
    total_steps : int
        Steps of each run.
    seeds : int or sequence of int
        How many, 0, 1, ..., or which ones. Where the folder has the same study with fewer, the others are
        added to it, and their runs alone are made; not to a search by what came out, nor with early stopping.
    settings : mapping, optional
        Keyword arguments of `DistAsyncQLearning` that all runs share.
    vary : mapping, optional
        Those that differ: a list of values each, or a `Range`.
    search : "grid", "random" or "tpe"
        All combinations of the values; random draws; or what Optuna's tree-structured Parzen estimator
        proposes by the scores so far (extra `optuna`), which depends on the order in which runs end;
        settings once proposed stay.
    n_variants : int, optional
        How many settings any search but a grid tries, which needs it.
    search_seed : int
        Of these draws and proposals.
    early_stopping : SuccessiveHalving, optional
        By default all settings get all steps.
    points : int
        Points of the learning curve of each run.
    eval_episodes : int
        Episodes for the return of the greedy policy in the end.
    folder : path, optional
        Where the study is kept; by default a new folder for temporary files.

    Raises
    ------
    StudyError
        If these do not fit together, or the folder holds another study, or seeds that are not given.
    EnvError
        If an environment cannot be used.
    UnknownArgumentError
        If an argument is called something else here.
    """

    def __init__(
        self,
        env: EnvLike | Sequence[str] | Mapping[str, EnvLike],
        total_steps: int,
        seeds: int | Sequence[int] = 10,
        settings: Mapping[str, Any] | None = None,
        vary: Mapping[str, Any] | None = None,
        search: str = "grid",
        n_variants: int | None = None,
        search_seed: int = 0,
        early_stopping: SuccessiveHalving | None = None,
        points: int = 20,
        eval_episodes: int = 100,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        _check_counts(total_steps, points, eval_episodes)
        is_sampled = isinstance(search, str) and search in SAMPLERS
        _check_stopping(early_stopping, total_steps, search if is_sampled else None)
        common, varied = _checked_dicts(settings, vary)
        self._environments = _environments(env)
        self._common, self._vary = common, varied
        if is_sampled:
            require_optuna(search)
        how: Any = (varied, "random" if is_sampled else search, n_variants, search_seed)
        checked = checked_seeds(seeds)
        n_runs = n_tried(*how) * len(checked) * len(self._environments)
        if n_runs > MOST_RUNS:
            raise StudyError(
                f"A study has at most {MOST_RUNS:,} runs, got {n_runs:,}. Give fewer seeds, or vary fewer "
                "values."
            )
        made = [{**common, **each} for each in variants(*how)]
        if is_sampled:
            _check_ends(made[0], varied)
        for each in made:
            checked_settings(each)
        if search == "grid":
            _check_different(made, varied)
        looks = {
            name: looked_at(one, common.get("use_action_mask")) for name, one in self._environments.items()
        }
        for name, look in looks.items():
            if look.stepped is not None and look.make_another is None:
                raise StudyError(
                    f"{name} is one environment, and each run needs its own. Give a function that makes "
                    "it, such as lambda: MyEnv(), or its Gymnasium id."
                )
        stepped = {name: self._environments[name] for name, look in looks.items() if look.stepped is not None}
        self._code = {name: code_of(one) for name, one in stepped.items()}  # of others the plan has all
        self._costs = {name: 1.0 if look.simulator else float(STEPPED_COST) for name, look in looks.items()}
        self._stopping = early_stopping
        self._devices = set(varied.get("device", [common.get("device", "cpu")]))
        self.plan = Plan(
            environments={name: _told_of(self._environments[name], look) for name, look in looks.items()},
            variants=[None] * len(made) if is_sampled else tuple(made),
            varied=tuple(varied),
            seeds=checked,
            total_steps=int(total_steps),
            points=int(points),
            eval_episodes=int(eval_episodes),
            stopping=None if early_stopping is None else early_stopping.to_dict(),
            search=self._searched(search, len(made), search_seed) if is_sampled else None,
        )
        place = None if folder is None else checked_path("folder", folder)
        self._told = ""
        if place is None or not StudyFolder(place).holds(self.plan.to_dict()):  # what has begun goes on
            judged = [accepted(each) for each in made] if search == "grid" else possible(common, varied)
            self._told = check_part(judged, varied, looks.values(), search != "grid")
            if is_sampled:
                _check_scales(looks, varied)
        if place is None:
            if is_one_of_several():
                raise StudyError("Several ranks need one folder= for the study, which all of them see.")
            place = tempfile.mkdtemp(prefix="study-")
        self.folder = Path(place)

    def _searched(self, search: str, n_variants: int, seed: int) -> dict[str, Any]:
        """Return what a search goes through as plain data."""
        space = {
            name: {"low": values.low, "high": values.high, "log": bool(values.log)}
            if isinstance(values, Range)
            else [described({**self._common, name: value})[name] for value in values]
            for name, values in self._vary.items()
        }
        shared = described(self._common)
        return {
            "sampler": search,
            "n_variants": n_variants,
            "seed": int(seed),
            "space": space,
            "shared": {name: shared[name] for name in shared if name not in space},
        }

    def begin(self) -> StudyFolder:
        """Make the folder of the study, or find it there, and add seeds that it has not.

        StudyError if it holds another study, or one whose seeds cannot be these.
        """
        folder = StudyFolder(self.folder)
        there = folder.begin(self.plan.to_dict(), self._code)
        changed = {} if task_of_environment() else changed_code(self.folder, self._code)
        for name, parts in changed.items():
            logger.warning(
                "The code of %s is not what the study in %s was begun with: %s. Runs that are made stay as "
                "they are. Give another folder for a study of its own, unless that makes no difference.",
                name,
                self.folder,
                ", ".join(parts),
            )
        self.plan = replace(self.plan, seeds=tuple(there["seeds"]), added=tuple(there.get("added", ())))
        return folder

    def part(
        self, variants: Sequence[Mapping[str, Any]], seeds: Sequence[int], folder: str | os.PathLike[str]
    ) -> Sweep:
        """Return a sweep of these settings with these seeds in the same environments, without early stopping.

        Parameters
        ----------
        variants : sequence of mapping
            All settings of each, as `Plan.variants` has them.
        seeds : sequence of int
        folder : path
            Of its own.
        """
        made = copy(self)
        made._stopping, made._told = None, ""
        made.folder = Path(folder)
        made.plan = replace(
            self.plan,
            variants=tuple(variants),
            seeds=checked_seeds(list(seeds)),
            stopping=None,
            search=None,
            added=(),
        )
        return made

    def run(
        self,
        processes: int | None = None,
        progress: Callable[[SweepProgress], Any] | None = None,
        retry_failed: bool = False,
        stop_signals: Iterable[int | str] = SIGNALS,
    ) -> Study:
        """Make all runs that have not been made, together with whoever works in the same folder.

        Returns when all runs of the seeds that it was given are made, on every rank.

        Parameters
        ----------
        processes : int, optional
            Of this host, this one included; by default as many as there are cores, and where a launcher
            started this process as one of several ranks, this one alone. Runs with ``device="cuda"`` are
            made by this one, since a forked process cannot use a card.
        progress : callable, optional
            Called about once a second in this process.
        retry_failed : bool
            Whether runs that have failed before this call are made again.
        stop_signals : iterable of str or int
            Signals that stop the sweep in order, as those of `DistAsyncQLearning.train` do.

        Raises
        ------
        StudyError
            If the folder holds another study, or one whose seeds cannot be these, or cannot be written to;
            or an argument is none of those above.
        SettingsError
            If `stop_signals` holds what is no signal, or none that can stop a sweep.
        SweepStopped
            After a stop signal. It is a `SystemExit` with code 75: the same sweep goes on from there. After
            Ctrl-C it is a KeyboardInterrupt. Either way the runs under way are lost, but for their
            checkpoints.
        """
        check_call(processes, progress, retry_failed)
        count = (1 if is_one_of_several() else usable_cores()) if processes is None else processes
        if self._devices == {"cuda"} and count > 1:
            logger.info(
                "This process makes all runs, since a forked one cannot use a card. Start ranks to use "
                "several cards, for instance with `mpirun -n 4`."
            )
            count = 1
        signals = checked_signals("stop_signals", stop_signals)
        folder = self.begin()
        if self._told and not task_of_environment():
            logger.warning("%s", self._told)
        making = Making(self.plan, self._environments, self._costs, self.folder)
        making.stop_long_runs_on(signals)
        apart_after = 3 if processes == 1 else 2  # no other process was asked for
        maker = RunMaker(self.plan, self._stopping, making, self._propose, self._ended, apart_after)
        with self._stopped_by(signals, folder) as watch:
            has_forgotten = self._make_all(maker, int(count), progress, retry_failed, folder, watch)
            study = Study(self.folder)
            if has_forgotten or not task_of_environment():  # others may have written theirs before
                study.write_tables()
        return study

    @contextmanager
    def _stopped_by(self, signals: Iterable[int], folder: StudyFolder) -> Iterator[EndingWatch]:
        """Let stop signals and Ctrl-C end the runs under way at once: they are made again."""
        watch = EndingWatch(with_launchers(signals), self._ended)
        try:
            with watch:
                watch.check()
                yield watch
        except TrainingInterrupted:
            raise
        except (SweepStopped, TrainingStopped) as stopped:  # the latter of a long run, which listens itself
            if not task_of_environment():
                logger.warning(
                    "Stopped by %s: %s of %s runs are made. The same sweep with the same folder goes on.",
                    stopped.reason,
                    f"{self.plan.n_made(folder.records()):,}",
                    f"{self.plan.n_trainings(self._stopping):,}",
                )
            if isinstance(stopped, SweepStopped):
                raise
            raise SweepStopped(os.EX_TEMPFAIL, stopped.reason, self.folder) from stopped

    def _ended(self, stop: Stop) -> BaseException:
        if stop.code == INTERRUPTED:
            return KeyboardInterrupt()
        return SweepStopped(stop.code, stop.reason, self.folder)

    def _make_all(
        self,
        maker: RunMaker,
        processes: int,
        progress: Callable[[SweepProgress], Any] | None,
        retry_failed: bool,
        folder: StudyFolder,
        watch: EndingWatch,
    ) -> bool:
        """Make all runs with helper processes, and return whether any had failed before and was made anew."""
        with Member(folder) as member:  # it shows that it lives while it compiles
            has_forgotten = retry_failed and member.forget_failed()
            # Before there are helpers, which have it all then.
            once_on_each_host(self.folder / "members", partial(maker.making.compile, folder.records()))
            watch.check()
            with _out_of_collections(), helpers() as those:
                shown = ShownSweep(progress, self.plan, self.plan.n_trainings(self._stopping), folder)
                for _ in range(min(processes, self.plan.n_runs) - 1):
                    those.start(lambda: maker.help(StudyFolder(self.folder)))

                def tick() -> None:
                    watch.check()
                    for child in those.kill_idle(folder.longest_seconds):
                        folder.excuse(child)
                    if lost := those.lost():
                        logger.warning(
                            "%d helper process(es) of the sweep were lost: others make their runs.", lost
                        )
                    shown.tick()

                maker.work(folder, tick, member)
                shown.tick(at_end=True)
        return has_forgotten

    def _propose(self, number: int, folder: StudyFolder, arrivals: Arrivals) -> None:
        assert self.plan.search is not None
        before = {one: known for one in range(number) if (known := folder.proposed(one)) is not None}
        scores = arrivals.scores(before)
        told = [Told(known["drawn"], scores[one]) for one, known in before.items()]
        drawn = proposed(self._vary, self.plan.search["seed"], number, told)
        settings = described({**self._common, **values_of(self._vary, drawn)})
        heard = [one for one, score in scores.items() if score is not None]
        folder.propose(number, {"settings": settings, "drawn": drawn, "told": heard})


@contextmanager
def _out_of_collections() -> Iterator[None]:
    """Spare the collector, in helpers as well, all that is there now: libraries, and what was compiled."""
    if gc.get_freeze_count():  # the program does so itself
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _check_scales(looks: Mapping[str, Source], varied: Iterable[str]) -> None:
    """Raise `StudyError` where scores by which a search goes will be returns of several environments."""
    simulators = [look.simulator for look in looks.values()]
    are_known = all(one is not None and can_be_solved(one.model) for one in simulators)
    if len(looks) > 1 and (scale_changers(tuple(varied)) or not are_known):
        raise of_several_scales("The scores by which a search proposes settings", looks)


def _check_different(made: Sequence[Mapping[str, Any]], varied: Iterable[str]) -> None:
    """Raise `StudyError` where a grid has the same settings twice, such as 0.1 and Constant(0.1)."""
    seen = set()
    for each in made:
        told = json.dumps(described(each), sort_keys=True)
        if told in seen:
            named = ", ".join(f"{name}={each[name]!r}" for name in varied)
            raise StudyError(
                f"vary has the same settings twice, {named}: all their runs would be made twice. Leave the "
                "value out that stands there a second time."
            )
        seen.add(told)


def _check_counts(total_steps: Any, points: Any, eval_episodes: Any) -> None:
    counts = {"total_steps": total_steps, "points": points, "eval_episodes": eval_episodes}
    for name, value in counts.items():
        if not is_whole(value) or value < 1:
            raise StudyError(f"{name} must be a whole number of 1 or more, got {value!r}.")
    if points > total_steps:
        raise StudyError(f"A curve of {points} points needs as many steps, got total_steps={total_steps}.")


def _check_stopping(stopping: Any, total_steps: int, sampler: str | None) -> None:
    if stopping is None:
        return
    if not isinstance(stopping, SuccessiveHalving):
        raise StudyError(f"early_stopping must be a SuccessiveHalving or None, got {stopping!r}.")
    if stopping.steps(0, total_steps) < 1:
        raise StudyError(
            f"The first rung of {stopping} has less than one of total_steps={total_steps:,}. Give "
            f"{stopping.factor ** (stopping.rungs - 1):,} steps or more, or fewer rungs."
        )
    if sampler is not None and not stopping.asynchronous:
        raise StudyError(
            f'search="{sampler}" proposes settings one after the other, so that a rung never ends. '
            "Write SuccessiveHalving(asynchronous=True)."
        )


def _checked_dicts(settings: Any, vary: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what all runs have, and what they differ in, each by name."""
    for name, told in (("settings", settings), ("vary", vary)):
        if told is not None and not isinstance(told, Mapping):
            raise StudyError(f"{name} must be a dict of settings by name, got {told!r}.")
    common, varied = dict(settings or {}), dict(vary or {})
    if both := sorted(map(str, set(common) & set(varied))):
        raise StudyError(f"{', '.join(both)} stands in settings and in vary. Leave it out of one of them.")
    return common, varied


def _check_ends(first: Mapping[str, Any], varied: Mapping[str, Any]) -> None:
    """Check the ends of ranges: what is proposed later is from one to the other."""
    ranges = {name: values for name, values in varied.items() if isinstance(values, Range)}
    lowest = {**first, **{name: values.low for name, values in ranges.items()}}
    checked_settings(lowest)
    for name, values in ranges.items():
        checked_settings({**lowest, name: values.high})


def _environments(env: Any) -> dict[str, Any]:
    from dist_classicrl.environments import named

    if isinstance(env, (list, tuple)):
        if not all(isinstance(each, str) for each in env) or len(set(env)) < len(env):
            allowed = "a list must have names of environments, each once. Give others as a mapping by name."
            raise StudyError(f"env is {env!r:.200}; {allowed}")
        env = dict(zip(env, env, strict=True))
    if not isinstance(env, Mapping):
        env = {env if isinstance(env, str) else _name_of(env): env}
    if not env:
        raise StudyError("A study needs an environment, got none.")
    if len(set(map(str, env))) < len(env):
        raise StudyError(f"Two environments have the same name: {', '.join(map(repr, env))}. Give others.")
    return {str(name): named.make(one) if isinstance(one, str) else one for name, one in env.items()}


def _name_of(env: Any) -> str:
    return looked_at(env).name


def _told_of(env: Any, look: Source) -> str:
    """Return what an environment is, as a plan keeps it.

    The fingerprint of one that is stepped cannot tell what a class or function of the user's was given. What
    Gymnasium makes has that in its spec.
    """
    told = f"{look.name} {look.fingerprint}"
    is_seen = look.stepped is None or not isinstance(env, partial)
    if is_seen or env.func in (gymnasium.make, gymnasium.make_vec) or not (env.args or env.keywords):
        return told
    given = [plain(env.args), plain(env.keywords)] if env.args else plain(env.keywords)
    return f"{told} {json.dumps(given, sort_keys=True)}"
