"""From what a user passes as `env` to what the learners run: compiled code where it is the same process."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_classicrl.environments.function_model import FunctionMDP
from dist_classicrl.environments.identity import Identity
from dist_classicrl.environments.keyed import KeyedProcess, PackedStates
from dist_classicrl.environments.making.toy_text import unheard, unwrap_unchanged
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.sampling.alias import ModelTables
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import EnvError, RewardError, SettingsError, SpaceError

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from dist_classicrl.environments.stepped.base import SteppedEnv
    from dist_classicrl.environments.stepped.spaces import SpaceIndex

    GymnasiumEnv = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]
    #: What `train` takes as an environment.
    Known = TabularMDP | FunctionMDP | CompiledSimulator
    EnvLike = str | EnvSpec | GymnasiumEnv | Callable[[], GymnasiumEnv] | Known

logger = logging.getLogger(__name__)

_given: set[str] = set()  # hints that were logged


@dataclass(frozen=True)
class Source:
    """An environment ready to be learned in: either compiled or stepped."""

    n_states: int  # what the table must have at least
    n_actions: int
    simulator: CompiledSimulator | None
    stepped: SteppedEnv | None
    #: Makes so many copies, by default as many; None where one stepped instance is all there is.
    make_another: Callable[..., SteppedEnv] | None
    fingerprint: str  # equal on two ranks where the environment is
    name: str
    is_batch: bool = False  # a vector environment
    recipe: tuple[str, dict[str, Any]] = ("", {})  # see `recipe_of`
    #: Between its own observations and actions and the integers; None where these are known to be it.
    spaces: tuple[SpaceIndex | None, SpaceIndex | None] = (None, None)
    is_keyed: bool = False  # whether it is stepped, and its states are keys: too many for a table of them all
    #: What whoever trains in it should know, a sentence or two each.
    hints: tuple[str, ...] = ()

    @property
    def keys(self) -> np.dtype | None:
        """What states are where they are keys: int64 or uint64. None: they count from 0 on."""
        return None if self.game is None else self.game.keys

    @property
    def way_to_numbers(self) -> str:
        """What lets its states be counted where they are keys, as errors advise it."""
        if self.stepped is None:
            return "number the states (n_states= of CompiledSimulator.game)"
        return "let there be fewer observations than max_states allows, and a table has room for"

    @property
    def game(self) -> KeyedProcess | None:
        """What a table of keys has to know of it; None where it is stepped and its states count."""
        if self.stepped is None:
            return self.simulator
        return PackedStates(self.name, self.n_actions) if self.is_keyed else None

    @property
    def identity(self) -> Identity:
        """What tells later whether another environment is the same process."""
        observations, _ = self.spaces
        return Identity(
            self.name,
            self.n_states,
            self.n_actions,
            self.fingerprint,
            self.is_batch,
            observations is None or observations.is_plain,
            self.stepped is not None and self.stepped.mask_source == "info",
            *self.recipe,
        )

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit of episodes; None where nothing is known to cut them off."""
        env = self.simulator or self.stepped
        return None if env is None else env.max_episode_steps

    def give_hints(self) -> None:
        """Log what whoever trains in it should know, once in a process."""
        for hint in set(self.hints) - _given:
            _given.add(hint)
            logger.warning("%s", hint)

    def another(self, n_envs: int | None = None) -> Source:
        """Return the same with environments of its own, as many or `n_envs`; only where `make_another` is."""
        if self.make_another is None:
            raise EnvError(f"{self.name} is one instance and cannot be made again.")
        return replace(self, stepped=self.make_another(*(() if n_envs is None else (n_envs,))))

    def with_envs(self, n_envs: int) -> Source:
        """Return the same with so many stepped environments; if they are others, those here are closed."""
        if self.stepped is None or self.stepped.n_envs == n_envs:
            return self
        if self.make_another is not None:
            self.close()
        return self.another(n_envs)

    def close(self) -> None:
        """Close what was made here."""
        if self.stepped is not None:
            self.stepped.close()


def with_exploring_starts(source: Source) -> Source:
    """Return an environment whose episodes begin in each state that one can reach and act in.

    All are equally likely. Its name and its fingerprint stay what they are. SettingsError where its model is
    not known.
    """
    simulator = source.simulator
    if simulator is None or simulator.model is None:
        raise SettingsError(
            f"exploring_starts=True lets episodes begin in any state, which takes a known model, and "
            f"{source.name} has none: it begins where it begins. Give a TabularMDP, or an environment that "
            'is one, as "dist_classicrl/Blackjack-v0" is in place of "Blackjack-v1"; or leave it at False '
            'and explore otherwise, with behavior="ucb" or an initial_value= for instance.'
        )
    if not isinstance(simulator.model, TabularMDP):
        raise SettingsError(
            "exploring_starts=True lets episodes begin in each state that one can act in, and of "
            f"{source.name}, of which nothing is stored, it is not known which these are. Write "
            "TabularMDP.from_function(..., tables=True), or leave exploring_starts at False."
        )
    acts = simulator.model.reachable_pairs().any(axis=1)
    model = replace(simulator.model, start_prob=acts / acts.sum())
    return replace(source, simulator=replace(simulator, tables=CompiledSimulator.from_model(model).tables))


def resolve(
    env: Any,
    n_envs: int,
    use_action_mask: bool | None,
    compile_env: bool = True,
    max_states: int | None = None,
) -> Source:
    """Return what a user passes as `env` as a `Source`.

    For `n_envs` and `use_action_mask` see `make_stepped`; False also takes the mask from a TabularMDP or its
    simulator, with a SettingsError where it cannot be left out. Without `compile_env` a Gymnasium environment
    is stepped even where compiled code for the same process is known. Where one that is stepped has more
    states than `max_states`, or than a table has room for, they are keys. EnvError where `env` cannot be
    learned in: the classes below it say why.
    """
    if use_action_mask is False and isinstance(env, (TabularMDP, FunctionMDP, CompiledSimulator)):
        env = _without_mask(env)
    if isinstance(env, TabularMDP):
        env = CompiledSimulator.from_model(env)
    if isinstance(env, FunctionMDP):
        env = env.simulator()
    if isinstance(env, CompiledSimulator):
        return _compiled(env)
    import gymnasium

    from dist_classicrl.environments.stepped.batches import VectorEnvs
    from dist_classicrl.environments.stepped.make import make_stepped
    from dist_classicrl.environments.stepped.spaces import has_room

    factory = factory_of(env)
    probes: list[Any] = []
    recipe: tuple[str, dict[str, Any]] = ("", {})
    flattened = None
    if compile_env:
        one = env if factory is None else factory()
        recipe = recipe_of(one)
        is_env = isinstance(one, gymnasium.Env)
        known = _known_instance(one, use_action_mask, max_states) if is_env else None
        if known is not None:
            # Not closed: a callable may have returned the caller's own. A known environment that was neither
            # reset nor rendered holds nothing that would have to be closed.
            hints = tuple(
                f"{known.name} runs in compiled code, and what was given is not stepped: {idle}. To have "
                "it stepped all the same, give a new agent gymnasium.wrappers.TransformReward(env, lambda "
                "reward: reward)."
                for idle in unheard(one, is_kept=factory is None)
            )
            return replace(known, recipe=recipe, hints=hints)
        if factory is not None:
            probes.append(one)
        flattened = _flattened(one)

    def make_one() -> Any:
        assert factory is not None  # only then it is called
        return probes.pop() if probes else factory()

    def make(n_envs: int = n_envs) -> SteppedEnv:
        what = env if factory is None else make_one
        return make_stepped(what, n_envs, use_action_mask=use_action_mask)

    try:
        stepped = make()
    except SpaceError as error:
        if flattened is None:
            raise
        raise SpaceError(flattened) from error
    n_states, n_actions = stepped.n_states, stepped.n_actions
    is_keyed = (max_states is not None and n_states > max_states) or not has_room(n_states, n_actions)
    return Source(
        n_states=0 if is_keyed else n_states,
        n_actions=n_actions,
        simulator=None,
        stepped=stepped,
        make_another=None if factory is None else make,
        fingerprint=stepped.fingerprint(),
        name=_name(stepped.describe()["environment"]),
        is_batch=isinstance(stepped, VectorEnvs),
        recipe=recipe,
        spaces=(stepped.observations, stepped.actions),
        is_keyed=is_keyed,
        hints=() if flattened is None else (flattened,),
    )


def _flattened(env: Any) -> str | None:
    """Return what to write in place of an environment whose few observations were made one-hot, or None."""
    import gymnasium

    from dist_classicrl.environments.stepped.spaces import SpaceIndex

    wrappers = gymnasium.wrappers
    outer = _observations_of(env)
    while env is not None:
        is_timed = isinstance(env, wrappers.TimeAwareObservation) and env.flatten
        is_flat = is_timed or isinstance(
            env, (wrappers.FlattenObservation, wrappers.vector.FlattenObservation)
        )
        if is_flat and _observations_of(env) == outer:
            inner = _observations_of(env.env)
            try:
                index = SpaceIndex(inner)
            except SpaceError:
                return None
            if outer.shape[0] == len(index.sizes) + is_timed:  # these were numbers before
                return None
            module = "wrappers.vector" if isinstance(env, gymnasium.vector.VectorWrapper) else "wrappers"
            name = f"gymnasium.{module}.{type(env).__name__}"
            zeros = f"vectors of {outer.shape[0] - is_timed:,} zeros and ones"
            values = f"of the {index.n:,} values of {inner}, each combination of which is a state"
            if is_timed:
                return (
                    f"{name} makes {zeros}, and the time, {values}. Write {name}(env, flatten=False): a "
                    "table takes such observations as they are."
                )
            return (
                f"{name} makes {zeros} {values}. Leave that wrapper out: a table takes such observations as "
                "they are."
            )
        env = _inside(env)
    return None


def _inside(env: Any) -> Any:
    """Return what a wrapper is around, or the first that is stepped in a vector environment, or None."""
    import gymnasium

    if isinstance(env, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)):
        return env.env
    return env.envs[0] if isinstance(env, gymnasium.vector.SyncVectorEnv) else None


def _observations_of(env: Any) -> Any:
    """Return the space of one environment's observations; None where there is none."""
    return getattr(env, "single_observation_space", getattr(env, "observation_space", None))


def recipe_of(env: Any) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments, plain data, of which Gymnasium makes it; "" where not known.

    Wrappers are left out: whether it is the same process then, its fingerprint tells.
    """
    import gymnasium

    spec = env.unwrapped.spec if isinstance(env, gymnasium.Env) else None
    if spec is None:
        return "", {}
    arguments = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    try:
        is_plain = json.loads(json.dumps(arguments)) == arguments
    except (TypeError, ValueError):  # arrays and other objects
        is_plain = False
    return (spec.id, arguments) if is_plain else ("", {})


def _name(environment: dict[str, Any]) -> str:
    """Return the id or else the class of what is stepped.

    It is the same text in every process, unlike an object's own.
    """
    one = environment.get("single", environment)
    return str(one["id"] or one["layers"][-1]["class"])


def _compiled(simulator: CompiledSimulator) -> Source:
    return Source(
        simulator.n_states, simulator.n_actions, simulator, None, None, simulator.fingerprint, simulator.name
    )


def _without_mask(env: Known) -> Known:
    """Return `env` with all actions legal, where it plays them all."""
    if isinstance(env, FunctionMDP):
        if env.has_mask:
            raise SettingsError(
                f"use_action_mask=False is not allowed with {env.name}: its function may know nothing of the "
                "actions that its mask forbids. Leave use_action_mask out, or make the model without legal="
            )
        return env
    if isinstance(env, TabularMDP):
        if env.action_mask is None:
            return env
        if np.diff(env.outcome_ptr).min() == 0:
            raise SettingsError(
                f"use_action_mask=False is not allowed with {env.name}: it has pairs without outcomes, which "
                "only the mask keeps from being played. Leave use_action_mask out, or give every pair "
                "outcomes."
            )
        return replace(env, action_mask=None)
    if not env.has_mask:
        return env
    if isinstance(env.tables, ModelTables) and isinstance(env.model, (TabularMDP, FunctionMDP)):
        return _without_mask(env.model)
    raise SettingsError(
        f"use_action_mask=False is not allowed with {env.name}: whether a compiled game plays the actions "
        "that its mask forbids is not known. Leave use_action_mask out, or make the game without legal= if "
        "it does."
    )


def factory_of(env: Any) -> Callable[[], Any] | None:
    """Return what makes copies of `env`, which is what `resolve` takes; None where there is but one."""
    import gymnasium

    if isinstance(env, (str, gymnasium.envs.registration.EnvSpec)):
        from dist_classicrl.environments.stepped.make import of_gymnasium

        return partial(of_gymnasium, env)
    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)) or not callable(env):
        return None
    try:
        inspect.signature(env).bind()
    except TypeError as error:
        raise EnvError(
            f"{env!r} is no function that makes environments: it is called without arguments, and {error}. "
            "Write for instance functools.partial(function, argument)."
        ) from error
    except ValueError:  # what is built into Python may not tell
        pass
    return env


def _known_instance(env: Any, use_action_mask: bool | None, max_states: int | None) -> Source | None:
    """Return compiled code that is known to be the same process as `env`, or None."""
    from gymnasium.envs.toy_text.blackjack import BlackjackEnv

    from dist_classicrl.environments.problems.env import ProblemEnv
    from dist_classicrl.environments.tictactoe.env import TicTacToeEnv

    if type(env.unwrapped) is TicTacToeEnv:
        game = _tictactoe(env, use_action_mask)
        return None if game is None else _compiled(game)
    if type(env.unwrapped) is BlackjackEnv:
        source = _blackjack(env, use_action_mask)
        is_large = source is not None and max_states is not None and source.n_states > max_states
        return None if is_large else source  # its observations are keys then
    if type(env.unwrapped) is ProblemEnv:
        try:
            problem, limits = unwrap_unchanged(env)
        except EnvError:
            return None
        return _compiled(problem.simulator(min(limits, default=None)))
    model = known_model(env, use_action_mask=bool(use_action_mask))
    return None if model is None else _compiled(CompiledSimulator.from_model(model))


def known_model(env: Any, *, use_action_mask: bool = False) -> TabularMDP | None:
    """Return the model that is the same process as the Gymnasium environment, or None where none is known.

    See `TabularMDP.from_gymnasium`. The environment is not stepped, reset or closed; RewardError if a known
    one has a NaN or infinite reward.
    """
    try:
        return TabularMDP.from_gymnasium(env, use_action_mask=use_action_mask)
    except RewardError:
        raise
    except EnvError as reason:
        logger.debug("not compiled: %s", reason)
        return None


def _tictactoe(env: Any, use_action_mask: bool | None) -> CompiledSimulator | None:
    from dist_classicrl.environments.tictactoe import model as tictactoe_model
    from dist_classicrl.environments.tictactoe import simulator as game
    from dist_classicrl.environments.tictactoe.rules import rules

    masked = use_action_mask is not False
    try:
        base, limits = unwrap_unchanged(env)
    except EnvError:
        return None
    if not masked and base.illegal_action == "raise":
        return None
    legal = rules(base.agent_plays).legal
    return CompiledSimulator.game(
        name=f"TicTacToe, agent plays {base.agent_plays}" + ("" if masked else ", illegal moves lose"),
        n_states=legal.shape[0],
        n_actions=legal.shape[1],
        data=game.game_data(base.agent_plays),
        reset=game.reset,
        step=game.step,
        legal=legal if masked else None,
        max_episode_steps=min(limits, default=None),
        model=tictactoe_model.model(base.agent_plays) if masked else None,
    )


def _blackjack(env: Any, use_action_mask: bool | None) -> Source | None:
    """Return Gymnasium's Blackjack; None where it is not known to be that.

    It has the spaces and the fingerprint that it has when it is stepped as `gymnasium.make` gives it: agents
    that learned in it by steps go on.
    """
    from gymnasium import wrappers

    from dist_classicrl.environments.blackjack.rules import played_by
    from dist_classicrl.environments.blackjack.simulator import simulator_of
    from dist_classicrl.environments.stepped.batches import LoopedEnvs
    from dist_classicrl.environments.stepped.description import digest

    try:
        base, limits = unwrap_unchanged(env)
        natural, sab = played_by(env, base)
    except EnvError as reason:
        logger.debug("not compiled: %s", reason)
        return None
    limit = min(limits, default=None)
    made: Any = wrappers.OrderEnforcing(wrappers.PassiveEnvChecker(base))
    twin = LoopedEnvs([made if limit is None else wrappers.TimeLimit(made, limit)], use_action_mask, [])
    description, fingerprint = twin.describe()["environment"], twin.fingerprint()
    told = {"natural": False, "sab": False, **description["arguments"]}
    if (told["natural"], told["sab"]) != (natural, sab):  # set otherwise than by what Gymnasium makes it of
        fingerprint = digest({"stepped": fingerprint, "natural": natural, "sab": sab})
    name = _name(description)
    return replace(
        _compiled(simulator_of(name, natural, sab, limit)),
        fingerprint=fingerprint,
        spaces=(twin.observations, twin.actions),
    )
