"""The two kinds of stepped environments: a loop over single ones, and a vector environment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from dist_classicrl._jit import compiled_for
from dist_classicrl._jit.bound import Bound
from dist_classicrl.environments.stepped.base import (
    ENDED,
    GOES_ON,
    REALS,
    RESET,
    STEP,
    TRUTHS,
    WRONG,
    WRONG_MASK,
    SteppedEnv,
    not_returned,
    not_unpacked,
    settle_bound,
    unpacked,
)
from dist_classicrl.environments.stepped.masks import MASK_KEY, mask_in
from dist_classicrl.environments.stepped.space_advice import advice_for_each
from dist_classicrl.environments.stepped.spaces import SpaceIndex
from dist_classicrl.environments.stepped.unusable import OF_VALUES, not_usable
from dist_classicrl.errors import ActionMaskError, EnvError, SpaceError

_log = logging.getLogger(__name__)

_DICTS = repeat(dict)
_MOST_KEPT = 10_000  # actions
_PLAIN = 1e300  # what is no number, infinite, or a whole number that no float holds, is not below


class LoopedEnvs(SteppedEnv):
    """Environments stepped one after the other here, and reset at once when an episode ends.

    This is what `SyncVectorEnv` does, less the batching of infos and the deep copies, which cost more than
    the conversions here.
    """

    def __init__(self, envs: list[gymnasium.Env], use_action_mask: bool | None, owned: list[Any]) -> None:
        first = envs[0]
        _check_has_spaces(first, "observation_space", "action_space")
        super().__init__(
            first, len(envs), first.observation_space, first.action_space, use_action_mask, owned
        )
        for e, env in enumerate(envs):
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                raise EnvError(
                    f"Environment {e} of the batch has the spaces {env.observation_space} and "
                    f"{env.action_space}, and environment 0 has {first.observation_space} and "
                    f"{first.action_space}. The factory must make equal environments."
                )
        self._envs = envs
        if self.plays:
            self._value_of = _values_of(self.actions)

    @property
    def objects(self) -> list[Any]:
        """The environments that are stepped, without their wrappers."""
        return [env.unwrapped for env in self._envs]

    def _reset(self, seed: int | None) -> None:
        self._restart(self._rows, None if seed is None else [seed + e for e in range(self.n_envs)])

    def begin(self, rows: np.ndarray, seeds: list[int]) -> None:
        """Begin episodes in the environments `rows`, int64 (R,), each seeded with its own of `seeds`.

        The others stay where they are.
        """
        self._returns[rows] = 0.0
        self._lengths[rows] = 0
        self._restart(rows, seeds)
        self._check_not_blocked()

    def step(self, actions: np.ndarray) -> None:
        """Take one action in every environment, see `SteppedEnv.step`."""
        self.step_first(self.n_envs, actions)

    def step_first(self, n: int, actions: np.ndarray) -> None:
        """Take one action in each of the first `n` environments, and leave the others where they are.

        Those are not `valid` then. Otherwise as `step`; `actions` has the shape (n,).
        """
        if self.n_valid != n:
            self.valid[:n], self.valid[n:] = True, False
            self.n_valid = n
        if n and self.plays and not self._has_masks:
            self.play(int(actions[0]), self._settle_one, self._begin_one, actions, lambda: True)
            return
        if n < self.n_envs:
            self.next_states[n:] = self.states[n:]
            self._next_masks[n:] = self._masks[n:]
        envs = self._envs
        room: list[Any] = [None] * n
        observations, rewards, terminated, truncated, infos = room, room[:], room[:], room[:], room[:]
        e = 0
        try:
            for e, action in enumerate(self.actions.decode_each(actions)):
                result = envs[e].step(action)
                try:  # not `unpacked`: a call more would cost as much as a step of some environments
                    observations[e], rewards[e], terminated[e], truncated[e], infos[e] = result
                except (TypeError, ValueError):
                    raise not_returned(result, STEP, e) from None
        except OF_VALUES as error:
            _raise_if_wrong(error, e)
            raise
        self._take_in(n, actions, observations, rewards, terminated, truncated, infos)

    @cached_property  # who plays does not compile it
    def _settle_one(self) -> Callable[[int, float, bool, bool], int]:
        counted = Bound(self.counted)
        return partial(compiled_for(settle_bound, counted, 0, 0.0, False, False), counted)

    def _begin_one(self, state: int, *_: Any) -> int:
        self.states[0] = state
        return GOES_ON

    @property
    def plays(self) -> bool:
        """Whether this is a single environment."""
        return len(self._envs) == 1

    def play(
        self,
        action: int,
        follow: Callable[[int, float, bool, bool], int],
        begin: Callable[[int, float, bool, bool], int],
        actions: np.ndarray,
        is_over: Callable[[], bool],
    ) -> bool:
        """Take an action in the only environment and go on, see `SteppedEnv.play`."""
        step, value_of, index_of = self._envs[0].step, self._value_of, self.observations.index_of
        given, may_mask = self.given_mask, not self._has_masks and self.mask_source == "info"
        while True:
            try:
                result: Any = step(value_of(action))
            except OF_VALUES as error:
                _raise_if_wrong(error, 0)
                raise
            try:
                observation, reward, terminated, truncated, info = result
            except (TypeError, ValueError):
                raise not_returned(result, STEP, 0) from None
            index = index_of(observation)
            if type(reward) is not float and type(reward) in REALS and -_PLAIN < reward < _PLAIN:
                reward = float(reward)
            if (
                index is None
                or type(reward) is not float
                or type(terminated) not in TRUTHS
                or type(truncated) not in TRUTHS
                or type(info) is not dict
                or (may_mask and MASK_KEY in info)
                or (given is not None and not self._gives_mask(observation, info, given))
                or (action := follow(index, reward, bool(terminated), bool(truncated))) == WRONG_MASK
            ):
                self._take_in(1, actions, [observation], [reward], [terminated], [truncated], [info])
                return False
            if action == ENDED:
                observation, info = result = self._reset_one(0, None)
                index = index_of(observation)
                if (
                    index is None
                    or type(info) is not dict
                    or (may_mask and MASK_KEY in info)
                    or (given is not None and not self._gives_mask(observation, info, given))
                    or (action := begin(index, 0.0, False, False)) == WRONG_MASK
                ):
                    self._settled(1, actions)
                    self._begin_at(self._rows, [result])
                    break
                if action < 0 or is_over():
                    self._list_ended(1)
                    break
            elif action < 0 or is_over():
                self._settled(-1 if action == WRONG else 0, actions)
                break
        self._check_not_blocked()
        return True

    def _gives_mask(self, observation: Any, info: dict[str, Any], given: np.ndarray) -> bool:
        """Write the mask that came to `given`; return whether it is an array of numbers that fits."""
        if self.mask_source == "observation":
            mask = observation[MASK_KEY] if type(observation) is dict and MASK_KEY in observation else None
        elif (mask := info.get(MASK_KEY)) is None:
            given.fill(1)
            return True
        fits = type(mask) is np.ndarray and mask.shape == given.shape and mask.dtype.kind in "iub"
        if fits:
            given[:] = mask
        return fits

    def _take_in(
        self,
        n: int,
        actions: np.ndarray,
        observations: list[Any],
        rewards: list[Any],
        terminated: list[Any],
        truncated: list[Any],
        infos: list[Any],
    ) -> None:
        """Take what a step of the first `n` gave."""
        if not all(map(isinstance, infos, _DICTS)):
            e = next(e for e, info in enumerate(infos) if not isinstance(info, dict))
            step = observations[e], rewards[e], terminated[e], truncated[e], infos[e]
            raise not_returned(step, STEP, e)
        self._take(n, rewards, terminated, truncated)
        self.observations.encode_each(observations, self.next_states[:n])
        self._read_masks(observations, infos, self._rows[:n], self._next_masks)
        self._go_on(self._settle(actions))

    def _go_on(self, ended: np.ndarray) -> None:
        """Begin episodes in the environments where one has ended, and see that all can act."""
        if len(ended):
            self._restart(ended, None)
        self._check_not_blocked()

    def _restart(self, rows: np.ndarray, seeds: list[int] | None) -> None:
        """Reset the environments `rows` and write where they stand now."""
        numbers = rows.tolist()
        given = [None] * len(numbers) if seeds is None else seeds
        self._begin_at(rows, [self._reset_one(e, seed) for e, seed in zip(numbers, given, strict=True)])

    def _reset_one(self, e: int, seed: int | None) -> Any:
        """Reset an environment; return what that gave, which is an observation and an info."""
        try:
            return unpacked(self._envs[e].reset(seed=seed), RESET, e)
        except OF_VALUES as error:
            if not isinstance(error, TypeError) or "unexpected keyword argument 'seed'" not in str(error):
                _raise_if_wrong(error, e)
                raise
            raise EnvError(
                f"{error}: Gymnasium gives a seed to every environment. Write "
                "`def reset(self, *, seed=None, options=None):` and begin it with `super().reset(seed=seed)`."
            ) from error

    def _begin_at(self, rows: np.ndarray, results: list[Any]) -> None:
        """Write where the environments `rows` stand, whose resets gave these results."""
        observations = [observation for observation, _ in results]
        self.states[rows] = self.observations.encode_each(observations, rows=rows.tolist())
        self._read_masks(observations, [info for _, info in results], rows, self._masks)

    def _read_masks(
        self, observations: list[Any], infos: list[Any], rows: np.ndarray, masks: np.ndarray
    ) -> None:
        """Write the masks of the environments `rows`, which gave these observations and infos."""
        if self.mask_source == "observation":
            self._write_masks([mask_in(observation) for observation in observations], rows, masks)
        elif self.mask_source == "info":
            given = [mask for info in infos if (mask := info.get(MASK_KEY)) is not None]
            if len(given) == len(rows):
                self._write_masks(given, rows, masks)
            elif given or self._has_masks:
                masks[rows] = True
                if given:
                    present = np.array([info.get(MASK_KEY) is not None for info in infos])
                    self._write_masks(given, rows[present], masks)


class VectorEnvs(SteppedEnv):
    """A vector environment, in whichever of Gymnasium's autoreset modes it works."""

    def __init__(self, env: VectorEnv, use_action_mask: bool | None, owned: list[Any]) -> None:
        _check_has_spaces(env, "single_observation_space", "single_action_space")
        spaces = env.single_observation_space, env.single_action_space
        _check_infos_are_arrays(env)
        try:
            super().__init__(env, env.num_envs, *spaces, use_action_mask, owned)
        except SpaceError as error:
            raise SpaceError(advice_for_each(str(error), env, is_made=bool(owned))) from None
        self._env = env
        self._mode = _autoreset_mode(env)
        self._awaiting = self._rows[:0]  # the environments that reset at the next step, whatever the action

    @property
    def objects(self) -> list[Any]:
        """The vector environment without its wrappers, and those of its parts that are in this process."""
        env = self._env.unwrapped
        return [env, *(one.unwrapped for one in getattr(env, "envs", ()))]

    def _reset(self, seed: int | None) -> None:
        with _told_plainly(self._env):
            observations, infos = unpacked(self._env.reset(seed=seed), RESET)
        self._awaiting = self._rows[:0]
        self.observations.encode_batch(observations, self.states)
        self._read_masks(observations, infos, self._rows, self._masks)

    def step(self, actions: np.ndarray) -> None:
        """Take one action in every environment, see `SteppedEnv.step`."""
        with _told_plainly(self._env):
            observations, rewards, terminated, truncated, infos = unpacked(
                self._env.step(self.actions.decode_batch(actions)), STEP
            )
        self._take(self.n_envs, rewards, terminated, truncated)
        self.observations.encode_batch(observations, self.next_states)
        self._read_masks(observations, infos, self._rows, self._next_masks)
        self.valid[:] = True
        self.valid[self._awaiting] = False
        self.n_valid = self.n_envs - len(self._awaiting)
        ended = self._settle(actions)
        self._awaiting = ended if self._mode is AutoresetMode.NEXT_STEP else ended[:0]
        if len(ended):
            self._after_ending(ended, infos)
        self._check_not_blocked()

    def close(self) -> None:
        """Close the vector environment if `make_stepped` made it, or nothing can step it any more.

        Gymnasium would wait for ever for the answer of a process that has ended, or for one that was taken:
        then all are ended.
        """
        env = self._env.unwrapped
        if isinstance(env, AsyncVectorEnv) and not env.closed:
            if not _all_answer(env):
                for process, pipe in zip(env.processes, env.parent_pipes, strict=True):
                    process.kill()
                    process.join()
                    if pipe is not None:
                        pipe.close()
                env.closed = True
            elif None in env.parent_pipes:
                env.close()
        super().close()

    def _after_ending(self, ended: np.ndarray, infos: dict[str, Any]) -> None:
        """Tell the last state of each ended episode from the first of the next, by the autoreset mode."""
        if self._mode is AutoresetMode.NEXT_STEP:
            if self._has_masks:
                self._masks[ended] = True  # the next action only triggers the reset, so any will do
        elif self._mode is AutoresetMode.SAME_STEP:
            if "final_obs" not in infos:
                raise EnvError(
                    f"{self._env} resets in the same step but its infos have no 'final_obs', so that the "
                    f"last state of an episode is unknown. Make it with AutoresetMode.NEXT_STEP, or give "
                    f"infos['final_obs']."
                )
            finals = [infos["final_obs"][e] for e in ended]
            self.next_states[ended] = self.observations.encode_each(finals, rows=ended.tolist())
            if self.mask_source == "observation":
                self._write_masks([mask_in(final) for final in finals], ended, self._next_masks)
            else:
                self._read_masks(None, infos.get("final_info", {}), ended, self._next_masks)
        else:
            ended_now = self.terminated | self.truncated
            with _told_plainly(self._env):
                observations, infos = unpacked(self._env.reset(options={"reset_mask": ended_now}), RESET)
            self.states[ended] = self.observations.encode_batch(observations)[ended]
            self._read_masks(observations, infos, ended, self._masks)

    def _read_masks(
        self, observations: Any, infos: dict[str, Any], rows: np.ndarray, masks: np.ndarray
    ) -> None:
        """Write the masks of the environments `rows` from batched observations or infos."""
        if self.mask_source == "observation":
            self._write_masks(mask_in(observations)[rows], rows, masks)
        elif self.mask_source == "info":
            given = infos.get(MASK_KEY)
            if given is not None:
                present = infos.get(f"_{MASK_KEY}")
                if present is not None and np.shape(present) != (self.n_envs,):
                    raise ActionMaskError(
                        f"infos['_{MASK_KEY}'] is {present!r:.100}, and must say for each of the "
                        f"{self.n_envs} environments whether infos['{MASK_KEY}'] has a mask of it. Correct "
                        "it, or leave it out where all have masks."
                    )
                if present is not None and np.count_nonzero(present) < self.n_envs:
                    masks[rows] = True
                    rows = rows[present[rows]]
                self._write_masks(given if len(rows) == self.n_envs else given[rows], rows, masks)
            elif self._has_masks:
                masks[rows] = True


def _values_of(actions: SpaceIndex) -> Callable[[int], Any]:
    """Return what gives the action with an index, of the type and dtype that `space.sample()` has."""
    if isinstance(actions.space, gymnasium.spaces.Discrete) and actions.n <= _MOST_KEPT:
        every = actions.decode_each(np.arange(actions.n))  # of numbers, which no environment can change
        return every.__getitem__
    return actions.decode


def _check_has_spaces(env: gymnasium.Env | VectorEnv, *names: str) -> None:
    kind = type(env.unwrapped)
    for name in names:
        if getattr(env, name, None) is None:
            raise EnvError(
                f"{kind.__module__}.{kind.__qualname__} has no {name}. Give a class of your own, which says "
                f"which values there are, there or in __init__, for instance {name} = "
                "gymnasium.spaces.Discrete(4), or a Gymnasium id such as 'FrozenLake-v1'."
            )


def _check_infos_are_arrays(env: VectorEnv) -> None:
    while isinstance(env, gymnasium.vector.VectorWrapper):
        if isinstance(env, gymnasium.wrappers.vector.DictInfoToList):
            raise EnvError(
                "DictInfoToList makes a list of what a vector environment tells besides observations, from "
                "which neither action masks nor last observations can be read. Leave DictInfoToList out."
            )
        env = env.env


def _all_answer(env: AsyncVectorEnv) -> bool:
    """Whether an environment in subprocesses can be closed in order."""
    waits = getattr(env, "_state", AsyncState.DEFAULT) is not AsyncState.DEFAULT
    pipes = zip(env.processes, env.parent_pipes, strict=True)  # no pipe: it told its exception and ended
    return not waits and all(pipe is None or process.is_alive() for process, pipe in pipes)


def _raise_if_wrong(error: Exception, e: int | None) -> None:
    """Raise EnvError where an error came of what an environment returned: `not_unpacked`, `not_usable`."""
    if (told := not_unpacked(error, e) or not_usable(error, e)) is not None:
        raise told from error


@contextmanager
def _told_plainly(env: VectorEnv) -> Iterator[None]:
    """Raise `EnvError` in place of what Python makes of a process that has ended, or of wrong returns."""
    try:
        yield
    except OF_VALUES as error:
        _raise_if_wrong(error, None)
        raise
    except gymnasium.error.ClosedEnvironmentError as error:
        raise EnvError(f"{error} Give a vector environment that is open: make another one.") from error
    except (EOFError, ConnectionError) as error:
        inner = env.unwrapped
        if not isinstance(inner, AsyncVectorEnv):
            raise
        for process in inner.processes:
            process.join(0.1)  # its pipe is closed a moment before it has an exit code
        ended = [(e, process.exitcode) for e, process in enumerate(inner.processes) if not process.is_alive()]
        raise EnvError(
            f"Of {env} {', '.join(f'process {e} ended with exit code {code}' for e, code in ended)} in the "
            "middle of the run: the environment called os._exit or crashed, or it was killed, where memory "
            "ran out for instance. Correct the environment, or make fewer copies of it."
        ) from error


def _autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """Return when the vector environment resets, which decides what its observations mean."""
    # Gymnasium before 1.4 writes the mode into metadata that all vector environments of a class share, so
    # what the vector environment itself holds goes first.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    if mode is None:
        _log.warning(
            "%s does not say when it resets: taking AutoresetMode.NEXT_STEP, as Gymnasium does.", env
        )
        return AutoresetMode.NEXT_STEP
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise EnvError(
            f"{env} has the autoreset mode {mode!r}; allowed are {[known.value for known in AutoresetMode]}. "
            f"Set metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode."
        ) from None
