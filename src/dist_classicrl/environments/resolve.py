"""From what a user passes as `env` to what the learners run.

That is compiled code where it is the same process, else stepping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import EnvError

if TYPE_CHECKING:
    from dist_classicrl.environments.stepped_env import SteppedEnv


@dataclass(frozen=True)
class Source:
    """An environment ready to be learned in.

    Attributes
    ----------
    n_states, n_actions : int
        What the table must at least have.
    simulator : CompiledSimulator or None
        The compiled environment; None where it is stepped.
    stepped : SteppedEnv or None
        A batch of environments, where it is not compiled.
    make_another : callable or None
        Makes another independent `SteppedEnv`; None where one instance is all there is.
    fingerprint : str
        Equal on two ranks where the environment is.
    name : str
    """

    n_states: int
    n_actions: int
    simulator: CompiledSimulator | None
    stepped: SteppedEnv | None
    make_another: Callable[[], SteppedEnv] | None
    fingerprint: str
    name: str

    def another(self) -> Source:
        """Return the same with environments of its own; only where `make_another` is there."""
        if self.make_another is None:
            raise EnvError(f"{self.name} is one instance and cannot be made again.")
        return replace(self, stepped=self.make_another())

    def close(self) -> None:
        """Close what was made here."""
        if self.stepped is not None:
            self.stepped.close()


def resolve(env: Any, n_envs: int, use_action_mask: bool | None, compile_env: bool = True) -> Source:
    """Return `env` as a `Source`.

    Parameters
    ----------
    env : str, gymnasium.Env, gymnasium.vector.VectorEnv, callable, TabularMDP or CompiledSimulator
    n_envs : int
        Copies to step, where they are made here.
    use_action_mask : bool or None
        See `dist_classicrl.environments.stepping.make_stepped`.
    compile_env : bool
        False: step a Gymnasium environment even where compiled code for the same process is known.

    Raises
    ------
    EnvError
        Where it cannot be learned in: the classes below it say why.
    """
    if isinstance(env, TabularMDP):
        env = CompiledSimulator.from_model(env)
    if isinstance(env, CompiledSimulator):
        return _compiled(env)
    if compile_env:
        simulator = _known_process(env, use_action_mask)
        if simulator is not None:
            return _compiled(simulator)
    from dist_classicrl.environments.stepping import make_stepped

    def make() -> SteppedEnv:
        return make_stepped(env, n_envs, use_action_mask=use_action_mask)

    stepped = make()
    return Source(
        n_states=stepped.n_states,
        n_actions=stepped.n_actions,
        simulator=None,
        stepped=stepped,
        make_another=make if isinstance(env, str) or _is_factory(env) else None,
        fingerprint=stepped.fingerprint(),
        name=_name(stepped.describe()["environment"]),
    )


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


def _is_factory(env: Any) -> bool:
    import gymnasium

    if isinstance(env, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        return False
    return callable(env) or isinstance(env, gymnasium.envs.registration.EnvSpec)


def _known_process(env: Any, use_action_mask: bool | None) -> CompiledSimulator | None:
    """Return compiled code that is known to be the same process as `env`, or None."""
    import gymnasium

    if isinstance(env, (str, gymnasium.envs.registration.EnvSpec)):
        made = gymnasium.make(env)
    elif isinstance(env, gymnasium.Env):
        return _known_instance(env, use_action_mask)
    elif callable(env):
        made = env()
    else:
        return None
    try:
        return _known_instance(made, use_action_mask) if isinstance(made, gymnasium.Env) else None
    finally:
        if hasattr(made, "close"):
            made.close()


def _known_instance(env: Any, use_action_mask: bool | None) -> CompiledSimulator | None:
    from dist_classicrl.environments import toy_text
    from dist_classicrl.environments.tictactoe import TicTacToeEnv

    if type(env.unwrapped) is TicTacToeEnv:
        return _tictactoe(env, use_action_mask)
    model = toy_text.compile_gymnasium(env, use_action_mask=bool(use_action_mask))
    return None if model is None else CompiledSimulator.from_model(model)


def _tictactoe(env: Any, use_action_mask: bool | None) -> CompiledSimulator | None:
    from dist_classicrl.environments import tictactoe_simulator as game
    from dist_classicrl.environments.toy_text import unwrap_unchanged

    masked = use_action_mask is not False
    try:
        base, limits = unwrap_unchanged(env)
    except EnvError:
        return None
    if not masked and base.illegal_action == "raise":
        return None
    legal = game.legal_actions(base.agent_plays)
    return CompiledSimulator.game(
        name=f"TicTacToe, agent plays {base.agent_plays}" + ("" if masked else ", illegal moves lose"),
        n_states=legal.shape[0],
        n_actions=legal.shape[1],
        data=game.game_data(base.agent_plays),
        reset=game.reset,
        step=game.step,
        legal=legal if masked else None,
        memory_size=game.MEMORY_SIZE,
        max_episode_steps=min(limits, default=None),
    )
