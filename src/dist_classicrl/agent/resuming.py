"""From an agent to its checkpoints and back: which folder is whose, what fits, and where a run goes on."""

from __future__ import annotations

import logging
import os
import platform
import reprlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.checkpoint.folder import CheckpointFolder, Saved
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.checkpoint.writer import Writer
from dist_classicrl.engines.outcome import Tally, TrainingResult
from dist_classicrl.engines.run import Resumed
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import CheckpointError, CheckpointMismatchError
from dist_classicrl.learning.state import STATE_ARRAYS, unstack_states
from dist_classicrl.model.model_file import table_fault

if TYPE_CHECKING:
    from dist_classicrl.agent.agent import DistAsyncQLearning

logger = logging.getLogger(__name__)

# Settings that say what is learned: another value makes another experiment. Those of the second line do so in
# the reproducible mode only.
_SAME = ("algorithm", "dtype", "discount_factor", "async_updates")
_SAME_IN_ROUNDS = ("logical_workers", "sync_frequency", "batch_size", "replay_ratio")
# Settings that the state of learners depends on.
_STATE_SETTINGS = ("buffer_size", "replay_ratio", "use_action_mask")

_agents: dict[str, int] = {}


@dataclass
class Place:
    """An agent's own subfolder of a checkpoint folder.

    Attributes
    ----------
    number : int
        Of the agent among those of its script.
    folder : CheckpointFolder
    writer : Writer
    run : str
        The name of what is learned here from one beginning on, eight hexadecimal digits.
    fence : int
        The number under which this process may write here; 0: none yet.
    read : str or None
        The checkpoint that was last taken up.
    is_looked_through : bool
        Whether the agent has taken up what was here.
    """

    number: int
    folder: CheckpointFolder
    writer: Writer
    run: str
    fence: int = 0
    read: str | None = None
    is_looked_through: bool = False

    @property
    def told(self) -> dict[str, Any]:
        """What another rank needs to go on here in place of this one."""
        return {"number": self.number, "run": self.run}

    @property
    def generation(self) -> int:
        """How many processes wrote here before this one."""
        return max(0, self.fence - 1)

    def claim(self, read: str | None) -> bool:
        """Make sure of being the only one who writes here.

        Return False if another process wrote a checkpoint after `read`, the last one that was read.
        """
        if self.fence == 0:
            newest = self.folder.names()[:1]
            self.fence = self.folder.claim()
            return self.folder.names()[:1] == newest and (read is None or newest == [read])
        return True


@dataclass(frozen=True)
class Pending:
    """What a checkpoint said that the next steps go on from."""

    checkpoint: str
    mode: str
    begin: int
    tally: dict[str, float]
    stream: tuple[int, int] | None
    learners: dict[int, dict[str, np.ndarray]]
    exact: np.ndarray | None


@dataclass(frozen=True)
class Found:
    """A checkpoint that was read and checked against what the agent is to learn.

    Attributes
    ----------
    name : str
    steps : int
    seed : int or None
        None: the agent keeps its own.
    run : str or None
        None: it is of something else, and what is saved from now on is a run of its own.
    finished : list of dict
    q_table, visits : ndarray
        As much of them as the agent's table has room for, of its type.
    pending : Pending
    """

    name: str
    steps: int
    seed: int | None
    run: str | None
    finished: list[dict[str, Any]]
    q_table: np.ndarray
    visits: np.ndarray
    pending: Pending


def place_of(agent: DistAsyncQLearning, plan: CheckpointPlan) -> Place:
    """Return the agent's subfolder.

    The agents of a script are numbered in the order in which they first train with this folder.
    """
    place: Place | None = agent._places.get(plan.location)
    if place is not None:
        place.folder.keep(plan.keep_last, plan.keep_every)
        place.folder.mode = plan.mode
        return place
    if plan.location in agent._told_places:  # another rank served until now
        place = take_over_place(agent, plan, agent._told_places[plan.location], claim=False)
        return place
    number = _agents.get(plan.location, 0)
    if number > 0 and hasattr(sys, "ps1"):
        logger.warning(
            "%d agents of this session trained with %s before this one, which has a subfolder of its own. "
            "To go on from what an earlier one saved, call its train() again, or restart the session.",
            number,
            plan.location,
        )
    _agents[plan.location] = number + 1
    return _make_place(agent, plan, number, os.urandom(4).hex())


def note_place(agent: DistAsyncQLearning, plan: CheckpointPlan, told: dict[str, Any]) -> None:
    """Note where the server saves this agent, for this rank to go on there if it has to."""
    agent._told_places[plan.location] = told
    _agents[plan.location] = max(_agents.get(plan.location, 0), told["number"] + 1)


def take_over_place(
    agent: DistAsyncQLearning, plan: CheckpointPlan, told: dict[str, Any], claim: bool = True
) -> Place:
    """Return the subfolder in which a rank saved that is lost, for this one to go on there.

    Raises
    ------
    CheckpointError
        If this rank cannot use the folder.
    """
    place = agent._places.get(plan.location) or _make_place(agent, plan, told["number"], told["run"])
    place.run = told["run"]
    place.writer = Writer(place.folder)
    if claim:
        place.fence = place.folder.claim()
    place.is_looked_through = True
    return place


def _make_place(agent: DistAsyncQLearning, plan: CheckpointPlan, number: int, run: str) -> Place:
    folder = CheckpointFolder(plan.location, f"agent-{number}", plan.keep_last, plan.keep_every, plan.mode)
    place = Place(number, folder, Writer(folder), run)
    _agents[plan.location] = max(_agents.get(plan.location, 0), number + 1)
    agent._places[plan.location] = place
    return place


def find(agent: DistAsyncQLearning, source: Source, place: Place, plan: CheckpointPlan) -> Found | None:
    """Return the newest checkpoint of the agent's folder, if there is one to go on from; change nothing.

    Raises
    ------
    CheckpointError
        If there are checkpoints and none is good, or `plan` asks for one and there is none.
    CheckpointMismatchError
        If it is of something else than the agent is to learn.
    """
    saved = None if plan.resume == "never" else place.folder.read_newest()
    if saved is None:
        if plan.resume == "must":
            raise CheckpointError(
                f'There is no checkpoint in {place.folder.url}, but resume="must" asks for one. Correct '
                'checkpoint_dir, or write resume="auto" to begin afresh where there is none.'
            )
        return None
    fault = checkpoint_fault(saved)
    if fault is not None:
        raise _refused(saved, fault)
    if _is_outdated(agent, place, saved):
        return None
    fits = _check(agent, source, saved, plan.strict)
    body, arrays = saved.body, saved.arrays
    there, here = arrays["q_table"], agent.q_table
    rows, columns = (min(sizes) for sizes in zip(here.shape, there.shape, strict=True))
    with np.errstate(over="ignore"):
        q_table = there[:rows, :columns].astype(here.dtype, copy=False)
    if not np.isfinite(q_table).all():
        raise _refused(saved, f"its values are too large for a table of {here.dtype}")
    stream, exact = None, None
    learners: dict[int, dict[str, np.ndarray]] = {}
    if fits:
        stream = None if body["stream"] is None else (body["stream"]["start"], body["stream"]["used"])
        exact = arrays.get("exact")
        if exact is not None and exact.shape != (source.n_states * source.n_actions,):
            raise _refused(saved, f"its exact values have the shape {exact.shape}")
        learners = _learners(agent, saved)
    return Found(
        saved.name,
        body["steps"],
        body["seed"] if fits or agent._seed is None else None,
        body["run"] if fits else None,
        list(body["finished"]) if fits else [],
        q_table,
        arrays["visits"][:rows, :columns],
        Pending(saved.url, body["mode"], body["call"]["begin"], body["tally"], stream, learners, exact),
    )


def _is_outdated(agent: DistAsyncQLearning, place: Place, saved: Saved) -> bool:
    """Whether the agent, which saves to several folders, has already taken up more from another one."""
    resumed = any(other.read is not None for other in agent._places.values() if other is not place)
    return resumed and agent._steps > saved.body["steps"]


def take_up(agent: DistAsyncQLearning, place: Place, found: Found) -> None:
    """Bring the agent to a checkpoint."""
    rows, columns = found.q_table.shape
    agent.q_table[:rows, :columns] = found.q_table
    agent.visits[:rows, :columns] = found.visits
    agent._steps = found.steps
    agent._pending = found.pending
    if found.seed is not None:
        agent._seed = found.seed
    if found.run is not None:
        place.run = found.run
    agent._finished = found.finished
    agent._taken = found.q_table, found.visits
    place.read = found.name


def undo_changes(agent: DistAsyncQLearning) -> None:
    """Put back the table of the checkpoint, where the call that begins was begun by an earlier process.

    What the script does to the table between its calls, it did then as well: the checkpoint contains it.
    """
    if agent._taken is not None and agent._requested < agent._steps:
        q_table, visits = agent._taken
        rows, columns = q_table.shape
        agent.q_table[:rows, :columns] = q_table
        agent.visits[:rows, :columns] = visits


def _refused(saved: Saved, fault: str) -> CheckpointError:
    return CheckpointError(
        f"{saved.url} is no usable checkpoint: {fault}. Remove it to go on from the one before it, or "
        'write resume="never" to begin afresh.'
    )


def checkpoint_fault(saved: Saved) -> str | None:
    """Return what in a checkpoint is not what this library writes, or None."""
    body, arrays = saved.body, saved.arrays
    missing = sorted({"q_table", "visits"} - set(arrays)) + sorted(set(_BODY) - set(body))
    if missing:
        return f"it lacks {', '.join(missing)}"
    for name, is_good in _BODY.items():
        if not is_good(body[name]):
            return f"its {name} is {reprlib.repr(body[name])}"
    steps, call, stream = body["steps"], body["call"], body["stream"]
    if not call["begin"] <= steps <= call["end"]:
        return f"it has {steps} steps, and its call goes from {call['begin']} to {call['end']}"
    if stream is not None and stream["start"] + stream["used"] != steps:
        return f"it has {steps} steps, and its stream is {stream!r}"
    if not saved.name.endswith(f"-{body['run']}"):
        return f"its run is {body['run']!r}"
    q_table, exact = arrays["q_table"], arrays.get("exact")
    if q_table.dtype.name != body["settings"].get("dtype") or q_table.dtype.kind != "f":
        return f"its table is {q_table.dtype.name}, its settings say {body['settings'].get('dtype')!r}"
    if exact is not None and (exact.dtype != np.float64 or not np.isfinite(exact).all()):
        return f"its exact values are {exact.dtype.name} or not finite"
    return table_fault(q_table, arrays["visits"])


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _has_whole(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and all(_is_whole(value.get(name)) for name in names)


def _is_tally(value: Any) -> bool:
    names = set(Tally(0).to_dict(0.0))
    return isinstance(value, dict) and set(value) == names and all(map(_is_number, value.values()))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**1023


def _is_finished_call(value: Any) -> bool:
    return _has_whole(value, "begin", "end") and TrainingResult.is_described_by(value.get("result"))


# What the manifest says, apart from the arrays, and how to tell that it may be that.
_BODY: dict[str, Callable[[Any], bool]] = {
    "run": lambda value: isinstance(value, str),
    "steps": _is_whole,
    "seed": _is_whole,
    "settings": lambda value: isinstance(value, dict),
    "environment": lambda value: isinstance(value, dict) and isinstance(value.get("text"), str),
    "call": lambda value: _has_whole(value, "begin", "end"),
    "mode": lambda value: value in ("alone", "rounds", "async"),
    "stream": lambda value: value is None or _has_whole(value, "start", "used"),
    "tally": _is_tally,
    "finished": lambda value: isinstance(value, list) and all(map(_is_finished_call, value)),
}


def _check(agent: DistAsyncQLearning, source: Source, saved: Saved, strict: bool) -> bool:
    """Return whether all of a checkpoint fits, or only its table.

    Raises
    ------
    CheckpointMismatchError
        If `strict` and something differs, or if the agent is further than the checkpoint.
    """
    settings, body = agent.settings, saved.body
    there = body["settings"]
    here = settings.to_dict()
    names = _SAME if settings.async_updates else (*_SAME, *_SAME_IN_ROUNDS)
    both = [(name, there.get(name), here[name]) for name in names]
    both.append(("environment", body["environment"]["text"], environment_text(source)))
    both.append(("table", saved.arrays["q_table"].shape, agent.q_table.shape))
    if settings.seed is not None:
        both.append(("seed", body["seed"], settings.seed))
    differing = [f"{name}: {one!r} there, {other!r} here" for name, one, other in both if one != other]
    if differing and strict:
        raise CheckpointMismatchError(
            f"The checkpoint {saved.url} is of something else: {'; '.join(differing)}. Give this training a "
            "checkpoint_dir of its own, or write strict=False to take over as much of the table as fits."
        )
    if agent._steps > body["steps"]:
        raise CheckpointMismatchError(
            f"The checkpoint {saved.url} has {body['steps']} steps, and this agent has made {agent._steps} "
            "already: it cannot be a later state of this training. Give it a checkpoint_dir of its own, or "
            'write resume="never" to save next to what is there.'
        )
    if differing:
        logger.warning("Taking over what fits of %s, which differs: %s.", saved.url, "; ".join(differing))
    return not differing


def environment_text(source: Source) -> str:
    """Return an environment's name and the beginning of its fingerprint."""
    return f"{source.name} ({source.fingerprint[:12]})"


def resumed_of(agent: DistAsyncQLearning, begin: int) -> Resumed | None:
    """Return where a call that began at global step `begin` goes on from a checkpoint, if it does."""
    pending = agent._pending
    if pending is None:
        return None
    made = agent._steps - begin
    within = pending.begin == begin and made > 0
    tally = {**(pending.tally if within else Tally(0).to_dict(0.0)), "steps": made}
    if made == 0:  # between two calls: this one begins new episodes, as it would have without a stop
        return Resumed(pending.checkpoint, 0, tally, pending.mode)
    return Resumed(
        pending.checkpoint, made, tally, pending.mode, pending.stream, pending.learners, pending.exact
    )


def _learners(agent: DistAsyncQLearning, saved: Saved) -> dict[int, dict[str, np.ndarray]]:
    """Return the state of a checkpoint's learners, by number; none where new episodes are to begin."""
    number = {"alone": 1, "rounds": agent.settings.logical_workers}.get(saved.body["mode"])
    arrays = {name: saved.arrays[name] for name in STATE_ARRAYS if name in saved.arrays}
    if number is None or not arrays:
        return {}
    there, here = saved.body["settings"], agent.settings.to_dict()
    changed = [name for name in _STATE_SETTINGS if there.get(name) != here[name]]
    if changed:
        logger.warning(
            "New episodes begin, with an empty replay memory: since %s was written, %s changed.",
            saved.url,
            ", ".join(f"{name} (from {there.get(name)!r} to {here[name]!r})" for name in changed),
        )
        return {}
    return dict(enumerate(unstack_states(arrays, number)))


def end_of(finished: list[dict[str, Any]], begin: int, asked: int) -> int:
    """Return the global step at which the call from `begin` to `asked` ends, or has ended before that."""
    for call in finished:
        if (call["begin"], call["end"]) == (begin, asked):
            return begin + int(call["result"]["steps"])
    return asked


def result_of(place: Place | None, begin: int, end: int, agent: DistAsyncQLearning) -> TrainingResult:
    """Return the result of a call whose steps have all been made before, and say so."""
    read = None if place is None or place.read is None else f"{place.folder.url}/{place.read}"
    logger.warning(
        "All %s steps that this call of train asks for had been made before (%s in all): nothing to do.",
        f"{end - begin:,}",
        f"{agent._steps:,}",
    )
    for call in agent._finished:
        if call.get("begin") == begin and call.get("end") == end:
            return TrainingResult.from_dict({**call["result"], "resumed_from": read})
    return TrainingResult(steps=end - begin, resumed_from=read)


def description(
    agent: DistAsyncQLearning, source: Source, place: Place, begin: int, end: int
) -> dict[str, Any]:
    """Return what a checkpoint says of a call, apart from how far it is."""
    import gymnasium
    import numba

    from dist_classicrl import __version__

    return {
        "run": place.run,
        "generation": place.generation,
        "seed": agent._seed,
        "settings": agent.settings.to_dict(),
        "environment": {"text": environment_text(source), "fingerprint": source.fingerprint},
        "actions": source.n_actions,
        "call": {"begin": begin, "end": end},
        "versions": {
            "dist_classicrl": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }


def constant_arrays(agent: DistAsyncQLearning) -> dict[str, np.ndarray]:
    """Return the arrays that each checkpoint of an agent holds unchanged."""
    return {} if agent._legal is None else {"legal": np.ascontiguousarray(agent._legal)}
