"""What a `TabularMDP` can be made from besides its own arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dist_classicrl._arguments import named_arguments
from dist_classicrl.checks import Or, YesOrNo
from dist_classicrl.environments.making import conversion, garnet, toy_text

if TYPE_CHECKING:
    import numpy.typing as npt

    from dist_classicrl.environments.function_model import FunctionMDP
    from dist_classicrl.environments.making.sparse import SparseMatrices

_Self = TypeVar("_Self", bound="Making")

_STORED = 1 << 22
"""Outcomes of a function that are stored where nobody says: some 0.2 GB."""


class Making:
    """The ways to make a `TabularMDP`."""

    @classmethod
    @named_arguments("TabularMDP.from_arrays")
    def from_arrays(
        cls: type[_Self],
        transition: npt.ArrayLike | SparseMatrices,
        reward: npt.ArrayLike | SparseMatrices,
        start_prob: npt.ArrayLike,
        *,
        terminated: npt.ArrayLike | SparseMatrices | None = None,
        max_episode_steps: int | None = None,
        action_mask: npt.ArrayLike | None = None,
        name: str = "model",
        grid_shape: tuple[int, int] | None = None,
    ) -> _Self:
        """Make a model from arrays of transitions, or from sparse matrices.

        Where one has the shape (S, A, S), sparse matrices, such as scipy's, are taken as well: a list of one
        of shape (S, S) for each action, or one of shape (S * A, S) with the row s * A + a.

        Parameters
        ----------
        transition : array_like of float, shape (S, A, S), or sparse
            ``transition[s, a, t]`` is the probability that action `a` in state `s` leads to state `t`. A pair
            that the mask forbids may have zeros only.
        reward : array_like of float, shape (S, A, S) or (S, A), or sparse
            By transition, or by pair.
        start_prob : array_like of float, shape (S,)
        terminated : array_like of bool, shape (S, A, S) or (S,), or sparse, optional
            Which transitions end the episode, or which states end it when they are reached. None: none does.
        max_episode_steps, action_mask, name, grid_shape
            As for `TabularMDP`.

        Raises
        ------
        ModelError, RewardError, ActionMaskError, SettingsError
            As `TabularMDP` does.
        """
        fields = conversion.fields_of_arrays(transition, reward, terminated)
        fields |= {"start_prob": start_prob, "action_mask": action_mask}
        return _made(cls, **fields, max_episode_steps=max_episode_steps, name=name, grid_shape=grid_shape)

    @classmethod
    @named_arguments("TabularMDP.from_dict")
    def from_dict(
        cls: type[_Self],
        P: Mapping[int, Any] | Sequence[Any],
        start_prob: npt.ArrayLike,
        *,
        n_actions: int | None = None,
        action_mask: npt.ArrayLike | None = None,
        max_episode_steps: int | None = None,
        name: str = "model",
        grid_shape: tuple[int, int] | None = None,
    ) -> _Self:
        """Make a model from transitions in the form of Gymnasium's toy-text environments.

        Parameters
        ----------
        P : mapping or sequence
            ``P[s][a]`` is a list of tuples (probability, next state, reward, terminated), for the states 0 to
            S - 1. A pair that is missing or has an empty list is illegal.
        start_prob : array_like of float, shape (S,)
        n_actions : int, optional
            The number of actions. None: one more than the largest action in `P`. At most 67,108,864 pairs.
        action_mask : array_like of bool, shape (S, A), optional
            True where an action is legal. None: legal are the pairs that have outcomes.
        max_episode_steps, name, grid_shape
            As for `TabularMDP`.

        Raises
        ------
        ModelError, RewardError, ActionMaskError
            As `TabularMDP` does, and ModelError where the keys of `P` are not 0 to S - 1 and 0 to A - 1, or
            an outcome is not a tuple of four.
        """
        fields = conversion.fields_of_dict(P, n_actions, action_mask)
        fields |= {"start_prob": start_prob}
        return _made(cls, **fields, max_episode_steps=max_episode_steps, name=name, grid_shape=grid_shape)

    @classmethod
    def from_gymnasium(
        cls: type[_Self], env: Any, *, use_action_mask: bool = False, **make_kwargs: Any
    ) -> _Self:
        """Make the model of an environment of Gymnasium's toy text, or of a problem of this package.

        Known are instances of exactly `FrozenLakeEnv`, `TaxiEnv`, `CliffWalkingEnv` and `BlackjackEnv` (no
        subclasses), under any number of exactly `TimeLimit`, `OrderEnforcing`, `PassiveEnvChecker` and
        `RecordEpisodeStatistics`. The model has the instance's transitions `P`, its
        `initial_state_distrib`, and the smallest of the time limits around it. A Taxi whose passenger is
        fickle is not known: whether the passenger will still change its mind is not in the observation, so
        the observations are no Markov process. So it is of a Blackjack with `natural` or `sab`, which
        Blackjack-v1 has unless it is told otherwise: whether 21 came with two cards is hidden. Without these
        its states are numbered as `train` numbers its observations, ``(sum * 11 + card) * 2 + ace``. Of what
        `gymnasium.make` gives for an id of `dist_classicrl.environments.registry()` it has the problem's
        tables, where there are any.

        Parameters
        ----------
        env : str, gymnasium.envs.registration.EnvSpec or gymnasium.Env
            An id or a specification, which is made with `make_kwargs`, or an instance, which is only read.
        use_action_mask : bool
            Give a Taxi's model the mask of `TaxiEnv.action_mask`, which forbids the actions that have no
            effect: moves into a wall, picking up where no passenger waits, dropping off where nobody can get
            out. Gymnasium itself reports the mask in `info` and plays such actions nevertheless (reward -1 or
            -10), so without this all pairs are legal. FrozenLake and CliffWalking have no mask.
        **make_kwargs
            For `gymnasium.make`: the environment's own options, and `max_episode_steps`.

        Raises
        ------
        EnvError
            No model is known to be the same process; the message says why. Such an environment can still be
            stepped.
        RewardError
            A reward is NaN or infinite.
        """
        return _made(cls, **toy_text.fields_of(env, use_action_mask, make_kwargs))

    @classmethod
    def garnet(
        cls: type[_Self],
        n_states: int,
        n_actions: int,
        branching: int,
        *,
        seed: int,
        reward_std: float = 1.0,
        terminal_states: int = 0,
        termination_probability: float = 0.0,
        max_episode_steps: int | None = 100,
        name: str | None = None,
    ) -> _Self:
        """Make a random model, a Garnet.

        Each pair leads to `branching` distinct states, drawn uniformly. Their probabilities are the lengths
        of the pieces into which ``branching - 1`` independent uniform points cut the unit interval. The
        reward of a pair is normal with mean 0 and the same for all its outcomes. Episodes start in a
        uniformly drawn state that is not terminal.

        A Garnet goes on for ever. Episodes come from the time limit, which leaves the values as they are, or
        from terminations, which don't.

        Parameters
        ----------
        n_states, n_actions : int
        branching : int
            Outcomes per pair, from 1 to `n_states`. Time and memory grow with pairs times `branching`,
            which may be up to 4,294,967,296.
        seed : int
            The same arguments and seed give the same model, with the same version of NumPy.
        reward_std : float
            Standard deviation of the pairs' rewards, at least 0.
        terminal_states : int
            So many states, drawn at random, end the episode when they are reached; less than `n_states`.
        termination_probability : float
            Each step ends the episode with this probability, wherever it leads; from 0 to below 1. It is one
            more outcome per pair, with the same reward, into one of the pair's next states.
        max_episode_steps : int or None
            Time limit of an episode. None: no limit.
        name : str, optional
            None: a name that holds the sizes and the seed.

        Raises
        ------
        SettingsError
            An argument is outside what is allowed.
        RewardError
            `reward_std` is so large that a reward is infinite.
        """
        fields = garnet.draw(
            n_states, n_actions, branching, seed, reward_std, terminal_states, termination_probability
        )
        if name is None:
            name = f"Garnet({n_states}, {n_actions}, {branching}, seed={seed})"
        return _made(cls, **fields, max_episode_steps=max_episode_steps, name=name)

    @classmethod
    def from_function(
        cls: type[_Self],
        transition: Callable[..., Any],
        *,
        n_states: int,
        n_actions: int,
        n_outcomes: int,
        start: npt.ArrayLike | Callable[..., Any] | None = None,
        data: Any = None,
        legal: npt.ArrayLike | Callable[..., Any] | None = None,
        max_episode_steps: int | None = None,
        name: str = "model",
        tables: bool | None = None,
    ) -> _Self | FunctionMDP:
        """Make a model of a function that gives the outcomes of each pair, compiled with ``numba.njit``.

        It is asked in compiled code, in threads on all cores, so that models with 100 million pairs are made
        and checked in seconds. What is returned depends on the size. Small models, up to 4 million pairs
        times `n_outcomes`, become arrays: a `TabularMDP` as any other. Of larger ones nothing is stored: a
        `FunctionMDP` asks the function whenever something is needed, in every step of a simulation, too.
        It is trained in, solved and evaluated alike, and its `part` gives the packed alias tables of any of
        its states.

        Parameters
        ----------
        transition : function
            ``transition(data, state, action, outcome) -> (probability, next_state, reward, terminated)``:
            the outcome with this number, from 0 to ``n_outcomes - 1``. Its probability is 0 where a pair has
            fewer. Those of a pair add up to 1. Likely ones first make simulation without tables faster.
        n_states, n_actions : int
        n_outcomes : int
            The most outcomes that a pair has; with all actions at most 67,108,864.
        start : int, array_like of float, shape (S,), or function, optional
            The state that episodes start in, the distribution of the first state, or, for very many states,
            a compiled function ``start(data, random) -> state`` of 64 random bits (numpy.uint64). None: each
            state with the same chance. What a function draws from is not known: such a model is not stored.
        data : NamedTuple, optional
            The arrays and numbers that the functions read, see `CompiledSimulator.game`.
        legal : array_like of bool, shape (S, A), or function, optional
            True where an action is legal, or a compiled function ``legal(data, state, action) -> bool``.
            `transition` is not asked about other actions. None: all are legal.
        max_episode_steps, name
            As for `TabularMDP`.
        tables : bool, optional
            True: store the arrays whatever the size, some 25 bytes an outcome. False: store nothing. None: by
            the size, see above.

        Raises
        ------
        ModelError
            What the functions give does not describe a Markov decision process, which is told with the state
            and action, or they are not compiled.
        RewardError
            A reward is NaN or infinite.
        OutsideSpaceError
            A function read an array at an index that it does not have.
        ActionMaskError, SettingsError
            As `TabularMDP` does.
        """
        # Imported here: it brings numba, which a program that only makes models does not need.
        from dist_classicrl.environments.function_model import FunctionMDP

        tables = Or(None, YesOrNo())("tables", tables)
        model = FunctionMDP(
            transition,
            n_states,
            n_actions,
            n_outcomes,
            start=start,
            data=data,
            legal=legal,
            max_episode_steps=max_episode_steps,
            name=name,
        )
        if tables is None:
            is_small = model.n_states * model.n_actions * model.n_outcomes <= _STORED
            tables = is_small and model.has_start_prob
        return _made_of_checked(cls, model) if tables else model


def _made(cls: type[_Self], **fields: Any) -> _Self:
    return cls(**fields)


def _made_of_checked(cls: type[_Self], model: FunctionMDP) -> _Self:
    made: Any = object.__new__(cls)
    made._keep(
        {
            "n_states": model.n_states,
            "n_actions": model.n_actions,
            "start_prob": model.start_prob,
            "max_episode_steps": model.max_episode_steps,
            "action_mask": model.legal_pairs() if model.has_mask else None,
            "name": model.name,
            "grid_shape": None,
            **model.outcome_fields(),
        }
    )
    return made
