"""From the checkpoints in an agent's place back to the agent: what fits, and what is taken up."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dist_classicrl.agent.checkpoint_body import checkpoint_fault, refused
from dist_classicrl.checkpoint.folder import CheckpointFolder, Saved
from dist_classicrl.checkpoint.location import open_storage
from dist_classicrl.checkpoint.names import checkpoints_in
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.engines.run import Resumed
from dist_classicrl.engines.saving import MODES, finished_call
from dist_classicrl.environments.identity import Identity
from dist_classicrl.environments.resolve import Source
from dist_classicrl.environments.state_keys import from_stored, name_of_kind, words_of
from dist_classicrl.errors import CheckpointError, CheckpointMismatchError, SettingsError
from dist_classicrl.launch import slurm
from dist_classicrl.learning.learner import TAKEN
from dist_classicrl.learning.state import unstack_states
from dist_classicrl.model.agent_state import AgentState, Pending
from dist_classicrl.model.model_file import all_finite
from dist_classicrl.model.places import Place, PlaceName
from dist_classicrl.schedules.kinds import Schedule, from_dict, to_dict
from dist_classicrl.settings import TEMPERATURE, Settings
from dist_classicrl.tables.shape import TableShape

logger = logging.getLogger(__name__)

# Settings that say what is learned: another value makes another experiment. Those of the second line do so in
# the reproducible mode only.
_SAME = ("algorithm", "dtype", "discount_factor", "async_updates")
_SAME_IN_ROUNDS = ("logical_workers", "sync_frequency", "batch_size", "replay_ratio")
# Settings that the state of learners depends on.
_STATE_SETTINGS = ("buffer_size", "replay_ratio", "use_action_mask")


@dataclass(frozen=True)
class CallAsked:
    """What a call of `train` asks for, as all ranks have agreed."""

    source: Source
    total: int  # steps of all ranks together
    ranks: int  # of the communicator; 1 where a process is alone
    plan: CheckpointPlan | None  # where it is saved
    walkers: int | None  # so many are saved with it; None: it has none
    in_rows: bool  # whether the engine sees to it that all ranks have the table


@dataclass(frozen=True)
class Found:
    """A checkpoint that was read and checked against what the agent is to learn."""

    name: str
    steps: int
    seed: int | None  # None: the agent keeps its own
    run: str | None  # None: it is of something else, and what is saved from now on is a run of its own
    finished: list[dict[str, Any]]
    environment: Identity | None  # what the table was learned in; None: something else, or not known
    # That the agent has, too: with the call of `train` that each is a share of.
    schedules: dict[str, Schedule]
    pending: Pending  # the rest, with the table


def _check_holds_agents(plan: CheckpointPlan) -> None:
    """Raise CheckpointError where checkpoint_dir holds checkpoints, and not the folders of agents that do."""
    storage = open_storage(plan.checkpoint_dir, "", plan.checkpoint_mode)
    try:
        held = checkpoints_in(storage.names())
    except Exception:  # remote stores raise errors of many kinds; what may not be listed may still be used
        return
    if held:
        url = storage.url.rstrip("/")
        raise CheckpointError(
            f"{url} is the folder of one agent, with checkpoints such as {held[-1]}. To go on from there, "
            "give as checkpoint_dir the folder above it, where this one must be called agent-0; to begin "
            "afresh, give another folder."
        )


def find(state: AgentState, asked: CallAsked, plan: CheckpointPlan, place: Place) -> Found | None:
    """Return the newest checkpoint of the agent's place, if there is one to go on from; change nothing.

    CheckpointError where there are some and none is good, `plan` asks for one and there is none, or what it
    has as checkpoint_dir is itself an agent's folder;
    CheckpointMismatchError where it is of something else than the agent is to learn.
    """
    _check_holds_agents(plan)
    if plan.resume == "never":
        _check_begins_once(place)
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
    if _is_outdated(state, place, saved):
        return None
    fits = _check(state, asked, saved, plan.strict)
    body, arrays = saved.body, saved.arrays
    keys = _keys_of(state, saved)
    if fits and _shape_of(state, arrays).from_arrays(arrays) is None:
        raise _refused(saved, f"its tables are not those of the algorithm {state.settings.algorithm!r}")
    values, counts = _what_fits(state, arrays, fits)
    if not all_finite(values):
        raise _refused(saved, f"its values are too large for a table of {values.dtype}")
    stream, exact, environment, pace = None, None, None, None
    learners: dict[int, dict[str, np.ndarray]] = {}
    if fits:
        stream = None if body["stream"] is None else (body["stream"]["start"], body["stream"]["used"])
        exact, pace = arrays.get("exact"), body.get("pace")
        environment = Identity.from_dict(body["environment"]) or asked.source.identity
        if (
            exact is not None
            and state.keyed is None
            and exact.shape != (math.prod(state.corner_shape(environment)),)
        ):
            raise _refused(saved, f"its exact values have the shape {exact.shape}")
        learners = _learners(state, saved)
    begin = body["call"]["begin"]
    made = body["steps"] - begin
    resumed = Resumed(saved.url, made, body["tally"], body["mode"], stream, learners, exact, pace)
    return Found(
        name=saved.name,
        steps=body["steps"],
        seed=body["seed"] if fits or state.seed is None else None,
        run=body["run"] if fits else None,
        finished=list(body["finished"]) if fits else [],
        environment=environment,
        schedules=_schedules(state, saved),
        pending=Pending(begin, resumed, values, counts, keys, arrays.get("legal") if fits else None),
    )


def _keys_of(state: AgentState, saved: Saved) -> np.ndarray | None:
    """Return the states that are keys; CheckpointMismatchError where the agent's are not, or are others."""
    arrays = saved.arrays
    if (state.keyed is None) != ("keys" not in arrays):
        raise CheckpointMismatchError(
            f"The states in {saved.url} are {'keys' if 'keys' in arrays else 'numbers'}, and those of this "
            "training are not. Give it a checkpoint_dir of its own."
        )
    if state.keyed is None:
        return None
    keys, here = from_stored(arrays["keys"]), state.keyed.keys.dtype
    if words_of(keys.dtype) != words_of(here):
        raise CheckpointMismatchError(
            f"The states in {saved.url} are keys of {name_of_kind(keys.dtype)}, and those of this training "
            f"are of {name_of_kind(here)}. Give it a checkpoint_dir of its own."
        )
    return keys


def _what_fits(
    state: AgentState, arrays: Mapping[str, np.ndarray], fits: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return as much of a checkpoint's table as the agent's has room for, as `Pending` holds it.

    `fits`: it is of the same rule in the same environment. Else its `q_table` goes into each of the tables.
    """
    shape, here = _shape_of(state, arrays), state.table[0]
    found = shape.from_arrays(arrays) if fits else None
    if found is None:
        q_table, visits = arrays["q_table"], arrays["visits"]
        inner = tuple(slice(min(sizes)) for sizes in zip(shape.of_table, q_table.shape, strict=True))
        if shape.is_one_table and state.keyed is None:
            found = q_table[inner], visits[inner]
        else:
            found = state.values.copy(), state.counts.astype(np.int64)
            if state.keyed is not None:  # with other states
                size = shape.n_rows, shape.n_actions
                found = np.zeros(size, here.dtype), np.zeros(size, np.int64)
            of_each = (slice(None), *inner)
            shape.tables(found[0])[of_each] = q_table[inner]
            shape.tables(found[1])[of_each] = visits[inner] // shape.n_tables
    with np.errstate(over="ignore"):
        return found[0].astype(here.dtype, copy=False), found[1]


def _shape_of(state: AgentState, arrays: Mapping[str, np.ndarray]) -> TableShape:
    """Return what stands where in the agent's table, with as many states as a checkpoint has keys."""
    return replace(state.shape, n_states=len(arrays["keys"])) if "keys" in arrays else state.shape


def _is_outdated(state: AgentState, place: Place, saved: Saved) -> bool:
    """Whether the agent, which saves to several folders, has already taken up more from another one."""
    resumed = any(other.read is not None for other in state.places if other is not place)
    return resumed and state.steps > saved.body["steps"]


def take_up(state: AgentState, place: Place, found: Found) -> None:
    """Bring the agent to a checkpoint."""
    state.steps = found.steps
    state.finished = found.finished
    state.environment = found.environment
    state.change(**state.settings.of_schedules(found.schedules))
    if found.seed is not None:
        state.seed = found.seed
    if found.run is not None:
        place.run = state.places.run = found.run
    place.read = found.name
    state.pending = found.pending
    put_table_back(state)


def put_table_back(state: AgentState) -> None:
    """Let the agent's table be that of the checkpoint from which it goes on."""
    pending, keyed = state.pending, state.keyed
    if pending is not None and pending.keys is not None and keyed is not None:
        keyed.put(pending.keys, pending.legal, pending.values, pending.counts)
    elif pending is not None:
        state.put(pending.values, pending.counts)


def put_back_to_call(
    state: AgentState,
    folder: CheckpointFolder,
    place: PlaceName,
    begin: int,
    end: int,
    look: Callable[[], None],
) -> Resumed | None:
    """Let the agent's table be that of the newest checkpoint that the call from `begin` to `end` has written.

    Return what it says besides; None: there is none. `look` is called before each piece that is read.
    CheckpointError where none can be used.
    """
    saved = folder.read_newest(look)
    if saved is None or saved.body.get("run") != place.run:
        return None
    if saved.body.get("call") != {"begin": begin, "end": end}:
        return None
    if (fault := checkpoint_fault(saved)) is not None:
        raise _refused(saved, fault)
    body = saved.body
    found = state.shape.from_arrays(saved.arrays)
    if found is None:
        raise _refused(saved, "its tables are not those of this training")
    state.put(*found, look)
    learners = _learners(state, saved)
    return Resumed(saved.url, body["steps"] - begin, body["tally"], body["mode"], None, learners)


def _check_begins_once(place: Place) -> None:
    """Refuse to begin anew in each run of a SLURM job that goes back into the queue."""
    if slurm.times_queued_again() and (newest := place.folder.newest()) is not None:
        raise CheckpointError(
            "This SLURM job was queued again (SLURM_RESTART_COUNT is "
            f'{slurm.times_queued_again()}), and with resume="never" it would begin anew each time, though '
            f"{place.folder.url} has a checkpoint of {newest.steps} steps. Leave resume out, with a "
            "checkpoint_dir of its own for the run; to begin anew, submit the job again."
        )


def _refused(saved: Saved, fault: str) -> CheckpointError:
    instead = 'move it away to go on from the one before it, or write resume="never" to begin afresh'
    return refused(saved, fault, instead)


def _check(state: AgentState, asked: CallAsked, saved: Saved, strict: bool) -> bool:
    """Return whether all of a checkpoint fits, or only its table.

    CheckpointMismatchError where `strict` and something differs, or the agent is further than the checkpoint.
    """
    settings, body, walkers = state.settings, saved.body, asked.walkers
    there, here = body["settings"], settings.to_dict()
    names = _SAME if settings.async_updates else (*_SAME, *_SAME_IN_ROUNDS)
    both = [(name, there.get(name), here[name]) for name in names]
    if not settings.async_updates:  # a card makes another table, of which older versions knew nothing
        both.append(("device", _device_of_rounds(there), _device_of_rounds(here)))
    both.append(("environment", _environment_of_call(state, body, asked.total), asked.source.identity.text))
    both.append(("table", saved.arrays["q_table"].shape, _shape_of(state, saved.arrays).of_table))
    if body["call"]["begin"] == state.requested < body["steps"]:  # in the middle of this call
        if walkers is not None:
            both.append(("walkers", _walkers_of(saved, walkers), walkers))
        both.append(("what placement= chooses", *_engines(settings, asked, body["mode"])))
    if settings.seed is not None:
        both.append(("seed", body["seed"], settings.seed))
    differing = [f"{name}: {one!r} there, {other!r} here" for name, one, other in both if one != other]
    if differing and strict:
        raise _mismatch(saved.url, "; ".join(differing))
    if state.steps > body["steps"]:
        raise CheckpointMismatchError(
            f"The checkpoint {saved.url} has {body['steps']} steps, and this agent has made {state.steps} "
            "already: it cannot be a later state of this training. Give it a checkpoint_dir of its own, or "
            'write resume="never" to save next to what is there.'
        )
    if differing:
        logger.warning("Taking over what fits of %s, which differs: %s.", saved.url, "; ".join(differing))
    return not differing


def _device_of_rounds(settings: Mapping[str, Any]) -> str:
    """Return on what the reproducible mode learns with these settings: "auto" takes no card there."""
    return "cuda" if settings.get("device") == "cuda" else "cpu"


def _walkers_of(saved: Saved, usual: int) -> int:
    """Return how many walkers a checkpoint holds, `usual` where it holds none."""
    array = saved.arrays.get("walkers")
    is_there = array is not None and array.ndim == 3 and saved.body["mode"] == "supersteps"
    return array.shape[1] if array is not None and is_there else usual


def _mismatch(url: str, differing: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"The checkpoint {url} is of something else: {differing}. Give this training a checkpoint_dir of its "
        "own, or write strict=False to take over as much of the table as fits."
    )


def _engines(settings: Settings, asked: CallAsked, mode: str) -> tuple[str, str]:
    """Return what made a checkpoint of this `mode`, and what learns here.

    Both are "" where another engine makes no other table, and for a checkpoint of neither of these two, whose
    `async_updates` is another.
    """
    names = "rounds", "supersteps"
    if settings.async_updates or asked.source.simulator is None or mode not in names:
        return "", ""
    return mode, names[asked.walkers is not None]


def check_goes_on(state: AgentState, asked: CallAsked, strict: bool) -> None:
    """Check that a call which goes on from a checkpoint taken up before learns as it did there.

    Else new episodes begin, or CheckpointMismatchError where `strict`.
    """
    pending, walkers = state.pending, asked.walkers
    if pending is None or not state.requested == pending.begin < state.steps:
        return
    resumed = pending.resumed
    there = resumed.learners.get(0, {}).get("walkers") if resumed.mode == "supersteps" else None
    one, other = _engines(state.settings, asked, resumed.mode)
    if one != other:
        differing = f"what placement= chooses: {one!r} there, {other!r} here"
    elif walkers is not None and there is not None and len(there) != walkers:
        differing = f"walkers: {len(there)} there, {walkers} here"
    else:
        return
    if strict:
        raise _mismatch(resumed.checkpoint, differing)
    logger.warning("New episodes begin, since %s differs: %s.", resumed.checkpoint, differing)
    state.pending = replace(pending, resumed=replace(resumed, learners={}))


def _environment_of_call(state: AgentState, body: Mapping[str, Any], total: int) -> str:
    """Return in what the call of `train` was made that this one is, of `total` steps.

    It may have ended before the one in which the checkpoint was written, and that be in a new environment.
    """
    newest: str = body["environment"]["text"]
    call = finished_call(body["finished"], state.requested, state.requested + total)
    return newest if call is None else str(call.get("environment", newest))


def _schedules(state: AgentState, saved: Saved) -> dict[str, Schedule]:
    """Return those of a checkpoint's schedules that the agent has, too, as they were when it was written."""
    found = {}
    settings = saved.body["settings"]
    behavior = settings.get("behavior")
    kept = {**settings, TEMPERATURE: behavior.get(TEMPERATURE) if isinstance(behavior, dict) else None}
    for name, own in state.settings.schedules.items():
        there = kept.get(name)
        if isinstance(there, dict) and {**there, "call": None} == {**to_dict(own), "call": None}:
            try:
                found[name] = from_dict(there)
            except SettingsError as error:
                raise _refused(saved, str(error)) from error
    return found


def _learners(state: AgentState, saved: Saved) -> dict[int, dict[str, np.ndarray]]:
    """Return the state of a checkpoint's learners, by number; none where new episodes are to begin."""
    *alone, rounds, _ = MODES
    number = {**dict.fromkeys(alone, 1), rounds: state.settings.logical_workers}.get(saved.body["mode"])
    arrays = {name: saved.arrays[name] for name in saved.arrays if name not in TAKEN}
    if number is None or not arrays:
        return {}
    there, here = saved.body["settings"], state.settings.to_dict()
    changed = [name for name in _STATE_SETTINGS if there.get(name) != here[name]]
    if changed:
        logger.warning(
            "New episodes begin, with an empty replay memory: since %s was written, %s changed.",
            saved.url,
            ", ".join(f"{name} (from {there.get(name)!r} to {here[name]!r})" for name in changed),
        )
        return {}
    return dict(enumerate(unstack_states(arrays, number)))
