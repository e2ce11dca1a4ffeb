"""The base of every stepped environment: its arrays, its statistics and its checks."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dis import opname
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from dist_classicrl._jit import compiled_for, jit
from dist_classicrl._jit.bound import Bound, taken
from dist_classicrl.environments.stepped.description import describe_env, digest, time_limit
from dist_classicrl.environments.stepped.masks import MASK_KEY, first_blocked, masks_are_advice, write_masks
from dist_classicrl.environments.stepped.spaces import SpaceIndex, check_row_size
from dist_classicrl.errors import ActionMaskError, EnvError, RewardError

RESET, STEP = "observation, info", "observation, reward, terminated, truncated, info"
_NAMES = {names.count(",") + 1: names for names in (RESET, STEP)}
_COUNTS = {names: count for count, names in _NAMES.items()}
_OF_WRAPPERS = ("gymnasium.core", "gymnasium.vector.", "gymnasium.wrappers.")  # modules of Gymnasium

# What steps give as a rule. Of whatever else there is, arrays of NumPy say what it is, and take longer.
REALS, TRUTHS = frozenset((float, int, np.float64)), frozenset((bool, np.bool_))


class Counted(NamedTuple):
    """What a step is counted in, each array of shape (E,); see `SteppedEnv`."""

    before: np.ndarray  # int64, as the next two
    states: np.ndarray
    next_states: np.ndarray
    rewards: np.ndarray  # float64
    terminated: np.ndarray  # bool, as the next two
    truncated: np.ndarray
    valid: np.ndarray
    returns: np.ndarray  # float64: of the running episodes, undiscounted
    lengths: np.ndarray  # int64: likewise
    ended: np.ndarray  # int64: the environments whose episodes ended; then their returns and lengths
    ended_returns: np.ndarray  # float64
    ended_lengths: np.ndarray  # int64


@jit
def settle(step: Counted) -> int:
    """Count one step of every environment, and list the episodes that it ended.

    The environments, which stood in `states`, stand where it brought them then, and `before` has where they
    stood. Of what the step gave, entries that aren't valid are set to zero and False. `returns` and `lengths`
    are added to, and set to zero where an episode ended: then the first entries of `ended`, `ended_returns`
    and `ended_lengths` tell of it. Return the number of episodes that ended, or -1 - e if environment e gave
    a reward that isn't finite.
    """
    n_ended = 0
    for e in range(step.rewards.shape[0]):
        if not step.valid[e]:
            step.rewards[e] = 0.0
            step.terminated[e] = False
            step.truncated[e] = False
            continue
        if not np.isfinite(step.rewards[e]):
            return -1 - e
        step.returns[e] += step.rewards[e]
        step.lengths[e] += 1
        if step.terminated[e] or step.truncated[e]:
            step.ended[n_ended] = e
            step.ended_returns[n_ended] = step.returns[e]
            step.ended_lengths[n_ended] = step.lengths[e]
            step.returns[e] = 0.0
            step.lengths[e] = 0
            n_ended += 1
    for e in range(step.rewards.shape[0]):
        step.before[e] = step.states[e]
        step.states[e] = step.next_states[e]
    return n_ended


GOES_ON, ENDED, WRONG, WRONG_MASK = -1, -2, -3, -4
"""What became of a step of a single environment; see `settle_one` and `SteppedEnv.play`."""


@jit
def take_mask(given: np.ndarray, masks: np.ndarray) -> bool:
    """Write the mask that a single environment gave, if it has 0 and 1 only; return whether it has.

    `given` has the shape (A,), int64, and `masks` (1, A), bool.
    """
    for action in range(given.size):
        if not 0 <= given[action] <= 1:
            return False
    for action in range(given.size):
        masks[0, action] = given[action] == 1
    return True


@jit
def settle_one(step: Counted, next_state: int, reward: float, is_terminated: bool, is_truncated: bool) -> int:
    """Write what a step of a single environment gave, and `settle` it.

    Return ENDED where it ended an episode, WRONG where its reward isn't finite, and else GOES_ON: these are
    less than 0, as no action is.
    """
    step.next_states[0] = next_state
    step.rewards[0] = reward
    step.terminated[0] = is_terminated
    step.truncated[0] = is_truncated
    n_ended = settle(step)
    if n_ended < 0:
        return WRONG
    return ENDED if n_ended else GOES_ON


@jit
def settle_bound(step: Bound, next_state: int, reward: float, is_terminated: bool, is_truncated: bool) -> int:
    """Do what `settle_one` does with a bound `Counted`."""
    return settle_one(taken(step), next_state, reward, is_terminated, is_truncated)


class SteppedEnv:
    """A batch of E environments with integer observations and actions; `make_stepped` makes one.

    After `reset` and after every `step`, its arrays of shape (E,), and masks of shape (E, A), describe the
    batch. They are written in place at the next step, so copy what has to last.
    """

    def __init__(
        self,
        env: gymnasium.Env | gymnasium.vector.VectorEnv,
        n_envs: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        use_action_mask: bool | None,
        owned: list[Any],
    ) -> None:
        self._owned = owned  # what to close
        self.n_envs = n_envs
        # Between the environment's own values and the integers used here.
        self.observations = SpaceIndex(observation_space, "observation", mask_key=MASK_KEY)
        self.actions = SpaceIndex(action_space, "action")
        self.n_states = self.observations.n
        self.n_actions = self.actions.n
        check_row_size(self.n_actions)
        self._description = describe_env(env)
        if use_action_mask is None:
            # Who puts a mask into the observation means it.
            is_meant = self.observations.mask_space is not None
            use_action_mask = is_meant or not masks_are_advice(self._description)
        self.mask_source = _mask_source(self.observations, self.n_actions, use_action_mask)

        # Where each environment stands now, after any reset: what to act on next.
        self.states = np.zeros(n_envs, np.int64)
        # Where each stood before the last step.
        self.before = np.zeros(n_envs, np.int64)
        # The state that the last step reached: at the end of an episode its last observation, not the one
        # after the reset. A truncated step bootstraps from here.
        self.next_states = np.zeros(n_envs, np.int64)
        self.rewards = np.zeros(n_envs)
        self.terminated = np.zeros(n_envs, bool)
        self.truncated = np.zeros(n_envs, bool)
        # False where the last step was no transition: a vector environment with `AutoresetMode.NEXT_STEP`
        # spends one call on every reset and ignores the action. `next_states` is then the first state of the
        # new episode, the reward 0, and neither flag set.
        self.valid = np.ones(n_envs, bool)
        self.n_valid = n_envs
        # Of the episodes that the last step ended; undiscounted.
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        self._has_masks = False
        self._masks = np.ones((n_envs, self.n_actions), bool)
        self._next_masks = np.ones((n_envs, self.n_actions), bool)
        self._returns = np.zeros(n_envs)
        self._lengths = np.zeros(n_envs, np.int64)
        self._ended = np.zeros(n_envs, np.int64)
        self._ended_returns = np.zeros(n_envs)
        self._ended_lengths = np.zeros(n_envs, np.int64)
        self._rows = np.arange(n_envs)
        self.counted = Counted(
            self.before,
            self.states,
            self.next_states,
            self.rewards,
            self.terminated,
            self.truncated,
            self.valid,
            self._returns,
            self._lengths,
            self._ended,
            self._ended_returns,
            self._ended_lengths,
        )
        self._count_step = compiled_for(settle, self.counted)
        self._given_mask = np.zeros(self.n_actions, np.int64)

    @property
    def masks(self) -> np.ndarray | None:
        """Legal actions in `states`, some in every row; None until the environment gives a first mask."""
        return self._masks if self._has_masks else None

    @property
    def next_masks(self) -> np.ndarray | None:
        """Legal actions in `next_states`, likewise; perhaps none where the episode ended."""
        return self._next_masks if self._has_masks else None

    @property
    def given_mask(self) -> np.ndarray | None:
        """The mask that came last in a `play`, int64, shape (A,); None as `masks`."""
        return self._given_mask if self._has_masks else None

    @property
    def objects(self) -> list[Any]:
        """The environments that are stepped, without their wrappers."""
        raise NotImplementedError

    @property
    def plays(self) -> bool:
        """Whether it can `play`."""
        return False

    def play(
        self,
        action: int,
        follow: Callable[[int, float, bool, bool], int],
        begin: Callable[[int, float, bool, bool], int],
        actions: np.ndarray,
        is_over: Callable[[], bool],
    ) -> bool:
        """Take an action in the only environment, then that which `follow` returns, and so on.

        What a step gave, the next state, the reward, and whether it terminated and was truncated, is given to
        `follow`, which does what `take_mask`, where there are masks, and `settle_one` do, and returns
        WRONG_MASK, what `settle_one` returns, or the next action. Where it ended an episode, the first state
        of the next is given to `begin`, which writes it to `states`, and its mask to `masks`, and returns the
        next action, or GOES_ON or WRONG_MASK; no other of its arguments says anything. The play ends where
        no action is returned, and where it `is_over`. It takes neither lists nor, but for masks, arrays.

        A step that gives other than plain numbers is taken in as by `step`, and is the last one: `follow`
        does not hear of it; nor does `begin` of such a reset, after which the play ends likewise. Return
        whether `follow` heard of all. `actions`, shape (1,), has the last one, for what is raised: the same
        as by `step`.
        """
        raise NotImplementedError

    @property
    def max_episode_steps(self) -> int | None:
        """The least `gymnasium.wrappers.TimeLimit` around an environment; None where there is none."""
        return time_limit(self._description)

    def reset(self, seed: int | None = None) -> None:
        """Start an episode in every environment.

        Environment i is seeded with `seed + i`, as Gymnasium's vector environments do it. Without a seed the
        environments go on with their random streams, or start from the system's entropy.
        """
        self._returns.fill(0.0)
        self._lengths.fill(0)
        self.episode_returns = []
        self.episode_lengths = []
        self._reset(None if seed is None else int(seed))
        self._check_not_blocked()

    def step(self, actions: np.ndarray) -> None:
        """Take one action in every environment, and start those again whose episode ends.

        The actions, int64, are not checked, as this is the inner loop. RewardError if a reward is NaN or
        infinite; OutsideSpaceError if an observation is not in the environment's space; ActionMaskError if a
        mask is malformed, or forbids everything where an action has to be taken. What the environment itself
        raises comes through unchanged.
        """
        raise NotImplementedError

    def _reset(self, seed: int | None) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close the environments that `make_stepped` made; those that it was given stay open."""
        owned, self._owned = self._owned, []
        for env in owned:
            env.close()

    def describe(self) -> dict[str, Any]:
        """Return what this environment is, as JSON-able data that is equal for equal ones in any process."""
        return {
            "environment": self._description,
            "observations": self.observations.describe(),
            "actions": self.actions.describe(),
            "n_states": self.n_states,
            "n_actions": self.n_actions,
            "masks_from": self.mask_source,
            "n_envs": self.n_envs,
        }

    def fingerprint(self) -> str:
        """Return the SHA-256 of `describe()` without `n_envs`, which is not part of the problem."""
        return digest({key: value for key, value in self.describe().items() if key != "n_envs"})

    def _take(self, n: int, rewards: Any, terminated: Any, truncated: Any) -> None:
        """Take what a step of the first `n` gave, one value each; EnvError if that is of another kind."""
        given = (
            ("reward", rewards, "fiub", REALS, self.rewards),
            ("value of terminated", terminated, "biu", TRUTHS, self.terminated),
            ("value of truncated", truncated, "biu", TRUTHS, self.truncated),
        )
        for what, values, kinds, usual, out in given:
            try:
                if isinstance(values, list) and usual.issuperset(map(type, values)):
                    out[:n] = values if n != 1 else values[0]  # of a list it makes an array first
                    continue
                array = np.array(values)
            except Exception:  # ragged, no numbers, or too large: errors of many kinds
                array = np.empty(0)
            if array.dtype.kind not in kinds or array.shape != (n,):
                raise _not_one_each(what, values, kinds)
            out[:n] = array

    def _settle(self, actions: np.ndarray) -> np.ndarray:
        """Check the rewards, count the step, and return the numbers of the environments whose episode ended.

        From here on the environments stand where the step has brought them.
        """
        return self._settled(self._count_step(self.counted), actions)

    def _settled(self, n_ended: int, actions: np.ndarray) -> np.ndarray:
        """Return what `_settle` does, after `settle` returned `n_ended`."""
        if n_ended < 0:
            e = -1 - n_ended
            raise RewardError(
                f"Environment {e} gave the reward {self.rewards[e]} for action {actions[e]} in state "
                f"{self.states[e]} (observation {self.observations.decode(int(self.states[e]))}). Rewards "
                f"must be finite numbers: correct the environment, or replace such rewards with "
                f"gymnasium.wrappers.TransformReward."
            )
        if self._has_masks:
            self._masks[:] = self._next_masks
        self._list_ended(n_ended)
        return self._ended[:n_ended].copy() if n_ended else self._rows[:0]

    def _list_ended(self, n_ended: int) -> None:
        self.episode_returns = self._ended_returns[:n_ended].tolist() if n_ended else []
        self.episode_lengths = self._ended_lengths[:n_ended].tolist() if n_ended else []

    def _write_masks(self, given: Any, rows: np.ndarray, masks: np.ndarray) -> None:
        """Write the masks of the environments `rows`, remembering that this environment has masks."""
        self._has_masks = True
        write_masks(given, rows, masks)

    def _check_not_blocked(self) -> None:
        """Raise where an environment has to act and may not."""
        if self._has_masks and (e := first_blocked(self._masks)) >= 0:
            raise ActionMaskError(
                f"The action mask of environment {e} forbids every action in state {self.states[e]} "
                f"(observation {self.observations.decode(int(self.states[e]))}), where the episode goes "
                f"on. Allow an action there, end the episode (terminated=True), or ignore the masks with "
                f"use_action_mask=False."
            )


def unpacked(result: Any, names: str, e: int | None = None) -> Any:
    """Return what `reset` or `step` returned, which Gymnasium gives these `names`; EnvError for others.

    `e` is the number of the environment, None for a vector environment.
    """
    is_tuple = isinstance(result, (tuple, list)) and len(result) == _COUNTS[names]
    if is_tuple and isinstance(result[-1], dict):
        return result
    raise not_returned(result, names, e)


def not_returned(result: Any, names: str, e: int | None) -> EnvError:
    """Return the error for what `reset` or `step` returned in place of a tuple of these `names`."""
    function = "reset" if names.count(",") == 1 else "step"
    whose = "the vector environment" if e is None else f"environment {e}"
    return _wrong_tuple(f"{function} of {whose} returned {reprlib.repr(result)}", names)


def not_unpacked(error: Exception, e: int | None) -> EnvError | None:
    """Return the error for what `reset` or `step` returned where a wrapper of Gymnasium could not unpack it.

    None for an `error`, caught by who called the environment, that came from something else. `e` is the
    number of the environment, None for one of those in a vector environment.
    """
    passing = SteppedEnv, gymnasium.Wrapper, gymnasium.vector.VectorEnv
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:  # from the caller's frame on
        trace = trace.tb_next
        if not isinstance(trace.tb_frame.f_locals.get("self"), passing):
            return None
    module = trace.tb_frame.f_globals.get("__name__", "")
    operation, count = trace.tb_frame.f_code.co_code[trace.tb_lasti : trace.tb_lasti + 2]
    if opname[operation] != "UNPACK_SEQUENCE" or count not in _NAMES or not module.startswith(_OF_WRAPPERS):
        return None
    function = "step" if _NAMES[count] is STEP else "reset"
    whose = "an environment" if e is None else f"environment {e}"
    wrapper = type(trace.tb_frame.f_locals["self"]).__name__
    said = f"{function} of {whose} returned what {wrapper} around it cannot unpack ({error})"
    return _wrong_tuple(said, _NAMES[count])


def _wrong_tuple(said: str, names: str) -> EnvError:
    return EnvError(
        f"{said}, and must return the tuple ({names}), of which info is a dict. Correct the environment "
        "(gymnasium.utils.env_checker.check_env finds such things), or wrap it in "
        "shimmy.GymV21CompatibilityV0 where it was written for an older Gym."
    )


def _not_one_each(what: str, values: Any, kinds: str) -> EnvError:
    """Return the error for values of which one is no single number, or no truth value."""
    allowed = "a number" if "f" in kinds else "True or False"
    found = f"gave {reprlib.repr(values)} for a whole batch"
    for e, value in enumerate(values if isinstance(values, (list, np.ndarray)) else ()):
        one = np.asarray(value) if np.isscalar(value) or isinstance(value, np.ndarray) else np.empty(0)
        if one.ndim or one.dtype.kind not in kinds:
            found = f"of environment {e} is {reprlib.repr(value)}, of type {type(value).__name__}"
            break
    kind = RewardError if what == "reward" else EnvError
    return kind(f"The {what} {found}, and must be {allowed}. Correct the environment's step function.")


def _mask_source(observations: SpaceIndex, n_actions: int, use_action_mask: bool) -> str | None:
    """Return where masks come from: "observation", "info", or None if they are ignored."""
    if not use_action_mask:
        return None
    if observations.mask_space is None:
        return "info"
    if observations.mask_space.shape != (n_actions,):
        raise ActionMaskError(
            f"The observation's 'action_mask' is {observations.mask_space}, and there are {n_actions} "
            f"actions. Declare it as gymnasium.spaces.MultiBinary({n_actions}), or pass "
            f"use_action_mask=False."
        )
    return "observation"
