"""A finite model whose outcomes a compiled function gives: nothing is stored but what is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dist_classicrl._jit import class_of_its_own, is_of_package
from dist_classicrl._random import stream_key
from dist_classicrl.checks import is_whole
from dist_classicrl.environments.finite_model import Fingerprinted
from dist_classicrl.environments.model_checks import (
    as_array,
    check_acting_states,
    checked_mask,
    checked_start,
    checked_state_values,
    checked_time_limit,
    positive_int,
)
from dist_classicrl.environments.reachability import most_different
from dist_classicrl.environments.sampling import function_checks as checks
from dist_classicrl.environments.sampling.alias import ModelTables, Slots, Work
from dist_classicrl.environments.sampling.function_kernels import (
    FAULT_SIZE,
    Kernels,
    Place,
    Simulated,
    kernels_of,
)
from dist_classicrl.environments.sampling.function_source import add_function, add_values
from dist_classicrl.environments.sampling.packing import check_n_states, even_starts, pack, start_slots
from dist_classicrl.environments.sampling.ranges import Rows, in_ranges
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.environments.solvers import average, finite_horizon, function_process
from dist_classicrl.environments.solvers.function_process import FunctionProcess
from dist_classicrl.environments.solvers.policy_value import checked_policy
from dist_classicrl.environments.solvers.process import check_limits
from dist_classicrl.errors import ModelError, OutsideSpaceError

if TYPE_CHECKING:
    import numpy.typing as npt

    from dist_classicrl.environments.solution import (
        AverageSolution,
        FiniteHorizonSolution,
        PolicyGain,
        Solution,
    )

_TRIED = 1 << 24
"""Outcomes that are looked at when a model is made: some tenths of a second."""

_TRIED_STARTS = 1_000

_TOGETHER = 1 << 20
"""Outcomes that are in memory at a time, where all are looked at as arrays."""

_MOST_OUTCOMES = 1 << 26
"""Of a state, all actions together: to look at them takes some tenths of a second, and each thread 2 GB."""

# A class of its own for each game is derived of it.
_Own: Any = class_of_its_own(Simulated, "of a function")


class NoData(NamedTuple):
    """What a function is given as `data` where there is none."""

    nothing: int = 0


class FunctionMDP(Fingerprinted):
    """A Markov decision process of which nothing is stored: the function that describes it is asked.

    Made by `TabularMDP.from_function`, and taken as an environment wherever a `TabularMDP` is. It is
    simulated by its function, so a step costs what that takes for the outcomes up to the one that is drawn.

    When it is made, 16 million outcomes, spread evenly, are checked as those of a `TabularMDP` are, with each
    of the function's own indices into an array; `check` looks at all, or at some states. In training each
    step is looked at, as those of `CompiledSimulator.game` are.

    Attributes
    ----------
    n_states, n_actions, n_outcomes : int
    max_episode_steps : int or None
    name : str
    """

    def __init__(
        self,
        transition: Callable[..., Any],
        n_states: int,
        n_actions: int,
        n_outcomes: int,
        *,
        start: Any = None,
        data: Any = None,
        legal: Any = None,
        max_episode_steps: int | None = None,
        name: str = "model",
    ) -> None:
        self.n_states = positive_int("n_states", n_states)
        self.n_actions = positive_int("n_actions", n_actions)
        self.n_outcomes = positive_int("n_outcomes", n_outcomes)
        check_n_states(self.n_states)
        if self.n_actions * self.n_outcomes > _MOST_OUTCOMES:
            raise ModelError(
                f"n_actions is {self.n_actions:,} and n_outcomes {self.n_outcomes:,}; a state can have at "
                f"most {_MOST_OUTCOMES:,} outcomes"
            )
        self.max_episode_steps = checked_time_limit(max_episode_steps)
        self.name = str(name)
        self._data = NoData() if data is None else data
        checks.check_data(self.name, self._data)
        if not is_of_package(type(self._data)):
            self._data = class_of_its_own(type(self._data), "data")(*self._data)
        checks.check_transition(self.name, self._data, transition)
        self._transition = transition
        self._legal, self._mask = None, np.zeros((0, 0), bool)
        if callable(legal):
            checks.check_legal(self.name, self._data, legal)
            self._legal = legal
        elif legal is not None:
            self._mask = checked_mask(legal, self.n_states, self.n_actions)
        self._start, self._start_prob = None, np.zeros(0)
        self._starts = even_starts(0, self.n_states)
        if callable(start):
            checks.check_start(self.name, self._data, start)
            self._start = start
        elif is_whole(start):
            if not 0 <= start < self.n_states:
                raise ModelError(f"start is state {start}; states are 0 to {self.n_states - 1}")
            self._starts = even_starts(int(start), 1)
        elif start is not None:
            self._start_prob = checked_start(start, self.n_states)
            self._starts = start_slots(self._start_prob)
        #: Where episodes start is what tells which states may lack legal actions.
        self._all_act = not self.has_mask or not self.has_start_prob
        self._parts: tuple[Any, ...] = (
            type(self._data),
            transition,
            self.n_outcomes,
            self._legal,
            self._start,
        )
        if self._start is not None:
            self._try_start()
        tried = max(1, _TRIED // (self.n_actions * self.n_outcomes))
        self._all_checked = tried >= self.n_states
        self.check(None if self._all_checked else np.linspace(0, self.n_states - 1, tried, dtype=int))

    def _kernels(self, check: bool = False) -> Kernels:
        return kernels_of(*self._parts, check)

    def _place(self, rows: Rows) -> Place:
        return Place(self._data, self._mask, rows.states, rows.first, self.n_states, self.n_actions)

    @property
    def _everywhere(self) -> Place:
        return self._place(Rows(None, self.n_states))

    def _try_start(self) -> None:
        reset = self._kernels(check=True).reset
        simulated = Simulated(self._data, *self._starts)
        for number in range(_TRIED_STARTS):
            try:
                state = reset(simulated, np.zeros(0, np.int64), stream_key(number, "start"))
            except IndexError as error:
                raise ModelError(
                    f"{self.name}: start read an array at an index that it does not have."
                ) from error
            if not 0 <= state < self.n_states:
                raise ModelError(
                    f"{self.name}: start gave state {state}; states are 0 to {self.n_states - 1}"
                )

    def _rely_on_all(self) -> None:
        """Look at all outcomes, once: loops read arrays by what they give."""
        if not self._all_checked:
            self.check()
            self._all_checked = True

    def check(self, states: range | np.ndarray | None = None) -> None:
        """Look at all outcomes of some states, or of all.

        Raises
        ------
        ModelError, RewardError, OutsideSpaceError
            What is wrong with the first outcome that is, by its state and action.
        """
        rows = Rows(states, self.n_states)
        in_ranges(lambda low, high: _Outcomes(self).survey(rows, low, high), rows.n)

    @cached_property
    def _surveyed(self) -> np.ndarray:
        """What the survey finds in each range of all states."""
        rows, source = Rows(None, self.n_states), _Outcomes(self)
        return np.array(in_ranges(lambda low, high: source.survey(rows, low, high), rows.n))

    @property
    def most_outcomes(self) -> int:
        """The most outcomes that a pair has, for which all are looked at, once; raises as `check`."""
        return int(self._surveyed[:, 3].max())

    @cached_property
    def most_successors(self) -> int:
        """The most next states, told apart by whether the episode ends, that a pair leads to; likewise."""
        size = max(1, _TOGETHER // (self.n_actions * self.most_outcomes))
        parts = (range(first, min(first + size, self.n_states)) for first in range(0, self.n_states, size))
        found = 0
        for states in parts:
            pointer, _, follow, _, ends = self._outcomes_of(Rows(states, self.n_states))
            found = max(found, most_different(pointer, 2 * follow + ends))
        return found

    @property
    def terminates(self) -> bool:
        """Whether an outcome of a legal pair ends an episode; likewise."""
        return bool(self._surveyed[:, 4].any())

    @property
    def has_mask(self) -> bool:
        """Whether not every action may be legal everywhere."""
        return self._legal is not None or self._mask.size > 0

    @property
    def has_start_prob(self) -> bool:
        """Whether the start distribution is known, not only drawn from by a function."""
        return self._start is None

    @property
    def start_prob(self) -> np.ndarray:
        """The distribution of the first state, float64, shape (S,); ModelError where it is not known."""
        if self._start is not None:
            raise ModelError(
                f"the start distribution of {self.name} is not known: its function start can only be drawn "
                "from. Give start as an array of probabilities, a state, or None for all alike."
            )
        if self._start_prob.size:
            return self._start_prob.copy()
        first, number = self._starts[1].tolist()
        prob = np.zeros(self.n_states)
        prob[first : first + number] = 1.0 / number
        return prob

    def legal_pairs(self, states: range | np.ndarray | None = None) -> np.ndarray:
        """Return the legal pairs, bool, shape (S, A), or those of some states."""
        rows = Rows(states, self.n_states)
        legal = np.ones((rows.n, self.n_actions), dtype=bool)
        if self.has_mask:
            allow, place = self._kernels(check=True).allow, self._place(rows)
            try:
                in_ranges(lambda low, high: allow(place, low, high, legal), rows.n)
            except IndexError as error:
                raise OutsideSpaceError(
                    f"{self.name}: legal read an array at an index that it does not have. It must work for "
                    "each state and action."
                ) from error
        return legal

    def part(self, states: range | np.ndarray | None = None) -> ModelTables:
        """Return the alias slots of some states, or of all, as `compile_model` does of a `TabularMDP`.

        They are made in threads, and their outcomes checked. Little memory is needed but that of the slots:
        32 bytes for each pair of up to two outcomes, and for each outcome of others; half of that where many
        pairs have rewards that float32 holds, each the same for all of its outcomes.
        """
        if self._start is not None:
            raise ModelError(
                f"{self.name}: tables need the start distribution, and its function start can only be drawn "
                "from. Give start as an array of probabilities, a state, or None for all alike."
            )
        return pack(_Outcomes(self), Rows(states, self.n_states), self._starts)

    def simulator(self, tables: bool = False) -> CompiledSimulator:
        """Return what is trained in: with `tables` the slots of `part`, else the function itself.

        A step that reads slots takes the same time for any function and any number of outcomes, and waits
        for memory where they are many. Both are the same process, but with the same seed they draw
        different outcomes.
        """
        legal = self.legal_pairs() if self.has_mask else None
        model: Any = self if self.has_start_prob else None
        limit, fingerprint = self.max_episode_steps, self.fingerprint()
        if tables:
            size = (self.n_states, self.n_actions)
            return CompiledSimulator(*size, self.part(), legal, 0, limit, model, self.name, fingerprint)
        reset, step = _game(*self._parts)
        data = _Own(self._data, *self._starts)
        simulator = CompiledSimulator.game(
            self.name, self.n_states, self.n_actions, data, reset, step, legal, 0, limit
        )
        return replace(simulator, model=model, fingerprint=fingerprint)

    def outcome_fields(self) -> dict[str, Any]:
        """Return what a `TabularMDP` is made of, checked."""
        self._rely_on_all()
        names = ("outcome_ptr", "outcome_prob", "outcome_next", "outcome_reward", "outcome_terminated")
        return dict(zip(names, self._outcomes_of(Rows(None, self.n_states)), strict=True))

    def _outcomes_of(self, rows: Rows) -> tuple[np.ndarray, ...]:
        """Return where the outcomes of each pair begin, and their chances, next states, rewards and ends."""
        source = _Outcomes(self)
        pointer = np.zeros(rows.n * self.n_actions + 1, np.int64)
        in_ranges(lambda low, high: source.write_sizes(rows, low, high, pointer), rows.n)
        np.cumsum(pointer, out=pointer)
        size = int(pointer[-1])
        real, follow, ends = np.empty((2, size)), np.empty(size, np.int64), np.empty(size, bool)
        arrays = (pointer, real[0], follow, real[1], ends)
        in_ranges(lambda low, high: source.write(rows, low, high, *arrays), rows.n)
        return arrays

    @cached_property
    def _digest(self) -> str:
        sizes = (self.n_states, self.n_actions, self.n_outcomes, self.max_episode_steps)
        digest = hashlib.sha256(f"function {sizes} ".encode())
        add_values(digest, (self._data, self._mask, self._start_prob, self._starts))
        for function in (self._transition, self._legal, self._start):
            digest.update(b" function ")
            if function is not None:
                add_function(digest, function)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return the SHA-256 of what the process is made from, in hexadecimal.

        That is its sizes, data, mask and start, and the code of its functions, with the constants and
        functions that they use, without comments. Two that are written differently count as two processes
        even if they are one. What is not seen is a constant that was changed after a function that uses it
        was compiled, and what libraries do.
        """
        return self._digest

    def __repr__(self) -> str:
        return (
            f"FunctionMDP({self.name!r}, {self.n_states:,} states, {self.n_actions:,} actions, at most "
            f"{self.n_outcomes:,} outcomes, max_episode_steps={self.max_episode_steps})"
        )

    def _check_acting_states(self) -> None:
        """Make sure, once, that no episode comes to a state without legal actions; ActionMaskError."""
        if self._all_act:
            return
        stuck = ~np.any(self.legal_pairs(), axis=1)
        if stuck.any():
            starts = self.start_prob > 0
            acting, waiting, size = starts.copy(), np.empty(self.n_states, np.int64), int(starts.sum())
            waiting[:size] = np.flatnonzero(starts)
            self._kernels().reach(self._everywhere, waiting, size, acting)
            check_acting_states(stuck, starts, acting)
        self._all_act = True

    def _process(self, weights: np.ndarray | None = None) -> FunctionProcess:
        self._rely_on_all()
        self._check_acting_states()
        return FunctionProcess(self._kernels(), self._everywhere, weights)

    def solve(
        self,
        discount_factor: float,
        tolerance: float = 1e-10,
        method: str = "modified_policy_iteration",
        max_iterations: int = 100_000,
    ) -> Solution:
        """Return the optimal values and a policy that attains them, as `TabularMDP.solve` does.

        Needed is memory for three numbers a state and one a pair. "policy_iteration" needs arrays.
        ConvergenceError at discount factor 1, where values may be infinite, which takes the transitions as
        arrays to find out. ActionMaskError, here and wherever policies are evaluated, if an episode comes to
        a state without legal actions and does not end, as far as it is known where episodes start.
        """
        process, legal = self._process(), self.legal_pairs()
        return function_process.solve(process, legal, discount_factor, tolerance, method, max_iterations)

    def solve_finite_horizon(
        self,
        horizon: int | None = None,
        discount_factor: float = 1.0,
        final_values: npt.ArrayLike | None = None,
    ) -> FiniteHorizonSolution:
        """Return the optimal values and actions of each step, as `TabularMDP.solve_finite_horizon` does."""
        return finite_horizon.solve(
            self._process, horizon, self.max_episode_steps, discount_factor, final_values
        )

    def solve_average_reward(
        self, tolerance: float = 1e-10, max_iterations: int = 100_000
    ) -> AverageSolution:
        """Return the largest average reward, as `TabularMDP.solve_average_reward` does, by value iteration.

        ModelError where the start distribution is not known, since an episode that ends begins anew.
        """
        check_limits(tolerance, max_iterations)
        start_prob, legal = self.start_prob, self.legal_pairs()
        return average.of_process(
            self._process(), legal, start_prob, tolerance, max_iterations, lambda: False
        )

    def _policy(self, policy: Any) -> tuple[FunctionProcess, np.ndarray]:
        """Return what evaluates a policy, and its actions, empty where it has probabilities."""
        actions = as_array("policy", policy)
        one_each = actions.shape == (self.n_states,) and actions.dtype.kind in "iu" and not self.has_mask
        if one_each and actions.min() >= 0 and actions.max() < self.n_actions:
            return self._process(), actions.astype(np.int64)
        return self._process(checked_policy(self, actions)), np.zeros(0, np.int64)

    def policy_value(
        self, policy: np.ndarray, discount_factor: float, from_start: bool = False
    ) -> np.ndarray:
        """Return the value of a policy, as `TabularMDP.policy_value` does; for discounts see `solve`."""
        return function_process.policy_value(*self._policy(policy), discount_factor)

    def policy_gain(
        self, policy: np.ndarray, tolerance: float = 1e-10, max_iterations: int = 100_000
    ) -> PolicyGain:
        """Return the average reward of a policy, as `TabularMDP.policy_gain` does, by sweeps."""
        check_limits(tolerance, max_iterations)
        start_prob, acting = self.start_prob, np.any(self.legal_pairs(), axis=1)
        return average.gain_of_process(
            *self._policy(policy), start_prob, acting, tolerance, max_iterations, lambda: False
        )

    def start_value(self, v: np.ndarray) -> float:
        """Return the mean of the state values `v`, shape (S,), over the start distribution."""
        v = checked_state_values(v, self.n_states)
        if self._start is None and not self._start_prob.size:
            first, number = self._starts[1].tolist()
            return float(v[first : first + number].mean())
        return float(self.start_prob @ v)


def process_of(model: FunctionMDP) -> FunctionProcess:
    """Return what solvers ask of a model, all of which is looked at before."""
    return model._process()


@lru_cache(maxsize=64)
def _game(*parts: Any) -> tuple[Any, Any]:
    """Return `reset` and `step` of a game; each knows itself with checked indices."""
    checked, plain = (kernels_of(*parts, check) for check in (True, False))
    plain.reset.with_checks, plain.step.with_checks = checked.reset, checked.step
    return plain.reset, plain.step


class _Outcomes:
    """The outcomes of a function as a `Source`."""

    def __init__(self, model: FunctionMDP) -> None:
        self.n_actions = model.n_actions
        self._model, self._kernels = model, model._kernels()
        self._checked = model._kernels(check=True)

    def _do(self, kernel: Any, rows: Rows, low: int, high: int, *arguments: Any, work: Any = None) -> None:
        model, fault = self._model, np.zeros(FAULT_SIZE)
        if work is None:
            work = Work.new(model.n_outcomes)
        try:
            kernel(model._place(rows), low, high, work, fault, *arguments)
        except IndexError as error:
            raise checks.outside_of_an_array(model.name, fault) from error
        checks.check_fault(model.name, fault, model.n_states)

    def survey(self, rows: Rows, low: int, high: int) -> np.ndarray:
        """See `Source`."""
        found = np.zeros(5, np.int64)  # the last: whether an outcome terminates
        self._do(self._checked.survey, rows, low, high, found)
        return found

    def count(self, rows: Rows, low: int, high: int, work: Work, first: np.ndarray) -> None:
        """See `Source`."""
        self._do(self._kernels.count, rows, low, high, first, True, work=work)

    def pack(
        self, rows: Rows, low: int, high: int, work: Work, first: np.ndarray, width: int, into: Slots
    ) -> None:
        """See `Source`."""
        self._do(self._kernels.pack, rows, low, high, first, width, into, work=work)

    def write_sizes(self, rows: Rows, low: int, high: int, pointer: np.ndarray) -> None:
        """Write the number of outcomes of pair i of the rows at `pointer[i + 1]`."""
        self._do(self._kernels.count, rows, low, high, pointer, False)

    def write(self, rows: Rows, low: int, high: int, *arrays: np.ndarray) -> None:
        """Write all outcomes."""
        self._do(self._kernels.outcomes, rows, low, high, *arrays)
