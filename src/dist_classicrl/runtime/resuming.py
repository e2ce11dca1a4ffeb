"""From an agent to its checkpoints and back: which folder is whose, what fits, and where a run goes on."""

from __future__ import annotations

import logging
import os
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.algorithms.learners import STATE_ARRAYS, unstack_states
from dist_classicrl.checkpoint.folder import CheckpointFolder, Saved
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.checkpoint.writer import Writer
from dist_classicrl.distributed.report import Tally, TrainingResult
from dist_classicrl.distributed.run import Resumed
from dist_classicrl.environments.resolve import Source
from dist_classicrl.errors import CheckpointError, CheckpointMismatchError
from dist_classicrl.runtime.model_file import table_fault
from dist_classicrl.settings import Settings

if TYPE_CHECKING:
    from dist_classicrl.runtime.agent import DistAsyncQLearning

logger = logging.getLogger(__name__)

# Settings that say what is learned: another value makes another experiment. Those of the second line do so in
# the reproducible mode only.
_SAME = ("algorithm", "dtype", "discount_factor", "async_updates")
_SAME_IN_ROUNDS = ("logical_workers", "sync_frequency", "batch_size", "replay_ratio")

_agents: dict[str, int] = {}


@dataclass
class Place:
    """An agent's own subfolder of a checkpoint folder.

    Attributes
    ----------
    folder : CheckpointFolder
    writer : Writer
    run : str
        The name of what is learned here from one beginning on, eight hexadecimal digits.
    finished : list of dict
        The end and the result of each call of `train` that the run has finished.
    fence : int
        The number under which this process may write here; 0: none yet.
    read : str or None
        The checkpoint that was last taken up.
    is_looked_through : bool
        Whether the agent has taken up what was here.
    """

    folder: CheckpointFolder
    writer: Writer
    run: str
    finished: list[dict[str, Any]] = field(default_factory=list)
    fence: int = 0
    read: str | None = None
    is_looked_through: bool = False

    @property
    def generation(self) -> int:
        """How many processes wrote here before this one."""
        return max(0, self.fence - 1)

    def claim(self) -> bool:
        """Make sure of being the only one who writes here.

        Return False if another process wrote a checkpoint after the last one was read.
        """
        if self.fence == 0:
            newest = self.folder.names()[:1]
            self.fence = self.folder.claim()
            return self.folder.names()[:1] == newest and (self.read is None or newest == [self.read])
        return True


@dataclass(frozen=True)
class Pending:
    """What a checkpoint said that the next steps go on from."""

    checkpoint: str
    mode: str
    begin: int
    tally: dict[str, float]
    stream: tuple[int, int] | None
    learners: dict[str, np.ndarray]
    exact: np.ndarray | None


def place_of(agent: DistAsyncQLearning, plan: CheckpointPlan) -> Place:
    """Return the agent's subfolder.

    The agents of a script are numbered in the order in which they first train with this folder.
    """
    place = agent._places.get(plan.location)
    if place is not None:
        place.folder.keep(plan.keep_last, plan.keep_every)
        place.folder.mode = plan.mode
        return place
    number = _agents.get(plan.location, 0)
    folder = CheckpointFolder(plan.location, f"agent-{number}", plan.keep_last, plan.keep_every, plan.mode)
    place = Place(folder, Writer(folder), os.urandom(4).hex())
    _agents[plan.location] = number + 1
    agent._places[plan.location] = place
    return place


def take_up(agent: DistAsyncQLearning, source: Source, place: Place, plan: CheckpointPlan) -> bool:
    """Bring the agent to the newest checkpoint of its folder, and return whether there was one.

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
        place.is_looked_through = True
        return False
    try:
        _take(agent, source, saved, place, plan.strict)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"{saved.url} is no usable checkpoint: its manifest is not what this library writes ({error!r}). "
            'Remove it to go on from the one before it, or write resume="never" to begin afresh.'
        ) from error
    place.read = saved.name
    place.is_looked_through = True
    return True


def _take(agent: DistAsyncQLearning, source: Source, saved: Saved, place: Place, strict: bool) -> None:
    body, arrays = saved.body, saved.arrays
    q_table, visits = arrays["q_table"], arrays["visits"]
    fault = table_fault(q_table, visits)
    steps, seed = body["steps"], body["seed"]
    if fault is None and not (isinstance(steps, int) and 0 <= steps < 2**62):
        fault = f"its number of steps is {steps!r}"
    if fault is None and not (isinstance(seed, int) and 0 <= seed < 2**63):
        fault = f"its seed is {seed!r}"
    if fault is not None:
        raise CheckpointError(
            f"{saved.url} is no usable checkpoint: {fault}. Remove it to go on from the one before it, or "
            'write resume="never" to begin afresh.'
        )
    fits = _check(agent, source, saved, strict)
    stream, run, finished = body["stream"], body["run"], list(body["finished"])
    pending = Pending(
        saved.url,
        body["mode"],
        body["call"]["begin"],
        body["tally"],
        (int(stream["start"]), int(stream["used"])) if stream is not None and fits else None,
        {name: arrays[name] for name in STATE_ARRAYS if name in arrays} if fits else {},
        arrays.get("exact") if fits else None,
    )
    # From here on nothing can fail: the agent is as before, or as the checkpoint has it.
    if agent._seed is None or fits:
        agent._seed = seed
    place.run, place.finished = run, finished
    rows, columns = (min(here, there) for here, there in zip(agent.q_table.shape, q_table.shape, strict=True))
    agent.q_table[:rows, :columns] = q_table[:rows, :columns]
    agent.visits[:rows, :columns] = visits[:rows, :columns]
    agent._steps = steps
    agent._pending = pending


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
    environment = body["environment"]
    both.append(("environment", environment["text"], environment_text(source)))
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
    pending, agent._pending = agent._pending, None
    if pending is None:
        return None
    made = agent._steps - begin
    within = pending.begin == begin and made > 0
    tally = {**(pending.tally if within else Tally(0).to_dict(0.0)), "steps": made}
    if made == 0:  # between two calls: this one begins new episodes, as it would have without a stop
        return Resumed(pending.checkpoint, 0, tally, pending.mode)
    states = _learners(pending, agent.settings)
    return Resumed(pending.checkpoint, made, tally, pending.mode, pending.stream, states, pending.exact)


def _learners(pending: Pending, settings: Settings) -> dict[int, dict[str, np.ndarray]]:
    number = {"alone": 1, "rounds": settings.logical_workers}.get(pending.mode)
    if number is None or not pending.learners:
        return {}
    return dict(enumerate(unstack_states(pending.learners, number)))


def result_of(place: Place | None, begin: int, end: int, agent: DistAsyncQLearning) -> TrainingResult:
    """Return the result of a call whose steps have all been made before, and say so."""
    read = None if place is None or place.read is None else f"{place.folder.url}/{place.read}"
    logger.warning(
        "All %s steps that this call of train asks for had been made before (%s in all): nothing to do.",
        f"{end - begin:,}",
        f"{agent._steps:,}",
    )
    for call in [] if place is None else place.finished:
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
