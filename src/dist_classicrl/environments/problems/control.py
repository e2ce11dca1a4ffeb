"""CartPole, MountainCar and Acrobot: simulated from the published equations, and observed in bins.

Where the system is stands in the walker's memory, as the bits of float64; the state that is learned from is
the bin that it lies in. So these are no Markov processes of their states, and no optimum is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dist_classicrl._jit import jit, jit_inline
from dist_classicrl._random import GAMMA, mix, unit
from dist_classicrl.checks import as_array, is_whole
from dist_classicrl.environments.sampling.packing import MOST_STATES
from dist_classicrl.environments.simulate import CompiledSimulator
from dist_classicrl.errors import SettingsError


class CartPole(NamedTuple):
    """The bins of cart position, cart velocity, pole angle and angular velocity."""

    bins: np.ndarray  # int64, shape (4,)
    low: np.ndarray  # float64, likewise: where the first bin begins
    width: np.ndarray


class MountainCar(NamedTuple):
    """The bins of position and velocity."""

    bins: np.ndarray
    low: np.ndarray
    width: np.ndarray


class Acrobot(NamedTuple):
    """The bins of two angles and two angular velocities."""

    bins: np.ndarray
    low: np.ndarray
    width: np.ndarray


def _game(
    kind: type,
    bins: Sequence[int],
    ranges: Sequence[tuple[float, float]],
    n_actions: int,
    reset: object,
    step: object,
    max_episode_steps: int | None,
) -> CompiledSimulator:
    is_list = as_array("bins", bins).shape == (len(ranges),)
    if not is_list or not all(is_whole(n) and 1 <= n < 1_000 for n in bins):
        raise SettingsError(
            f"bins must be {len(ranges)} whole numbers from 1 to 999, one for each of the quantities that "
            f"are observed, got {bins!r}."
        )
    if (n_states := math.prod(map(int, bins))) > MOST_STATES:
        raise SettingsError(
            f"bins={bins!r} make {n_states:,} states, and at most {MOST_STATES:,} are allowed. Give fewer."
        )
    low, high = np.array(ranges, dtype=float).T.copy()
    count = np.array(bins, np.int64)
    return CompiledSimulator.game(
        f"{kind.__name__}({'x'.join(map(str, count))} bins)",
        n_states=n_states,
        n_actions=n_actions,
        data=kind(count, low, (high - low) / count),
        reset=reset,  # type: ignore[arg-type]
        step=step,  # type: ignore[arg-type]
        memory_size=len(ranges),
        max_episode_steps=max_episode_steps,
    )


@jit_inline
def _uniform(random, number, low, high):
    """Return the number-th of the numbers between two that a word of random bits gives."""
    return low + (high - low) * unit(mix(random + np.uint64(number) * GAMMA))


@jit_inline
def _get(memory, i):
    return np.int64(memory[i]).view(np.float64)


@jit_inline
def _put(memory, i, value):
    memory[i] = np.float64(value).view(np.int64)


@jit_inline
def _observed(data, memory):
    """Return the bin of what is in memory."""
    state = 0
    for i in range(data.bins.size):
        place = (_get(memory, i) - data.low[i]) / data.width[i]
        state = state * data.bins[i] + np.int64(min(max(place, 0.0), data.bins[i] - 1.0))
    return state


def cart_pole(bins: Sequence[int] = (3, 6, 12, 12), max_episode_steps: int | None = 500) -> CompiledSimulator:
    """Return the cart and the pole of Barto, Sutton and Anderson (1983), as in Gymnasium's CartPole-v1.

    Action 0 pushes the cart to the left, 1 to the right. Each step gives 1; the episode ends where the cart
    leaves -2.4 to 2.4 m or the pole leans more than 12 degrees. Bins are cut of these ranges, and of -2 to 2
    m/s and -3 to 3 rad/s.

    After 5 million steps of Q-learning with the default settings the greedy policy keeps the pole up to
    the time limit: it collects 500.0 in 1,000 episodes of each of ten seeds.

    Train: ``dist-classicrl train dist_classicrl/CartPole-v0 --total-steps 5e6``.

    Parameters
    ----------
    bins : sequence of four int
        Of position, velocity, angle and angular velocity; their product is the number of states.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    angle = math.radians(12)
    ranges = (-2.4, 2.4), (-2.0, 2.0), (-angle, angle), (-3.0, 3.0)
    return _game(CartPole, bins, ranges, 2, reset_cart_pole, step_cart_pole, max_episode_steps)


@jit
def reset_cart_pole(data, memory, random):
    """Return the first bin: each quantity is between -0.05 and 0.05."""
    for i in range(4):
        _put(memory, i, _uniform(random, i, -0.05, 0.05))
    return _observed(data, memory)


@jit
def step_cart_pole(data, memory, state, action, random):
    """Push the cart for 0.02 s (Euler's method; R. Florian 2007, equations 23 and 24 without friction)."""
    x, speed = _get(memory, 0), _get(memory, 1)
    angle, turn = _get(memory, 2), _get(memory, 3)
    cosine, sine = math.cos(angle), math.sin(angle)
    push = ((10.0 if action == 1 else -10.0) + 0.05 * turn * turn * sine) / 1.1
    turn_rate = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
    rate = push - 0.05 * turn_rate * cosine / 1.1
    x += 0.02 * speed
    angle += 0.02 * turn
    _put(memory, 0, x)
    _put(memory, 1, speed + 0.02 * rate)
    _put(memory, 2, angle)
    _put(memory, 3, turn + 0.02 * turn_rate)
    fell = abs(x) > 2.4 or abs(angle) > 0.20943951023931953  # 12 degrees
    return _observed(data, memory), 1.0, fell


def mountain_car(bins: Sequence[int] = (40, 40), max_episode_steps: int | None = 200) -> CompiledSimulator:
    """Return the car of Moore (1990) in the valley, as in Gymnasium's MountainCar-v0.

    Actions are 0, backward, 1, none, and 2, forward. Each step gives -1, until the car is on the hill. Bins
    are cut of positions -1.2 to 0.6 and velocities -0.07 to 0.07, which it does not leave.

    After 20 million steps of Q-learning with the default settings the greedy policy collects -113.0, with
    a 95 % interval of 4.3 to either side over ten seeds.

    Train: ``dist-classicrl train dist_classicrl/MountainCar-v0 --total-steps 2e7``.

    Parameters
    ----------
    bins : sequence of two int
        Of position and velocity; their product is the number of states.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    ranges = (-1.2, 0.6), (-0.07, 0.07)
    return _game(MountainCar, bins, ranges, 3, reset_mountain_car, step_mountain_car, max_episode_steps)


@jit
def reset_mountain_car(data, memory, random):
    """Return the first bin: the car stands still, between -0.6 and -0.4."""
    _put(memory, 0, _uniform(random, 0, -0.6, -0.4))
    _put(memory, 1, 0.0)
    return _observed(data, memory)


@jit
def step_mountain_car(data, memory, state, action, random):
    """Drive for a step (Sutton and Barto, example 10.1)."""
    position, velocity = _get(memory, 0), _get(memory, 1)
    velocity += (action - 1) * 0.001 - 0.0025 * math.cos(3 * position)
    velocity = min(max(velocity, -0.07), 0.07)
    position = min(max(position + velocity, -1.2), 0.6)
    if position == -1.2 and velocity < 0.0:
        velocity = 0.0
    _put(memory, 0, position)
    _put(memory, 1, velocity)
    return _observed(data, memory), -1.0, position >= 0.5 and velocity >= 0.0


def acrobot(bins: Sequence[int] = (12, 12, 12, 12), max_episode_steps: int | None = 500) -> CompiledSimulator:
    """Return the two-link pendulum of Sutton (1996), as in Gymnasium's Acrobot-v1.

    Action a applies the torque ``a - 1`` to the joint between the links. Each step gives -1, and 0 the one
    that brings the free end above the height of a link over the fixed one. Bins are cut of the angles, -pi
    to pi, and of angular velocities from -6 to 6 and -12 to 12 rad/s, beyond which the outer ones go on.

    After 20 million steps of Q-learning with the default settings the greedy policy collects -102.8, with
    a 95 % interval of 2.5 to either side over ten seeds.

    Train: ``dist-classicrl train dist_classicrl/Acrobot-v0 --total-steps 2e7``.

    Parameters
    ----------
    bins : sequence of four int
        Of both angles and both angular velocities; their product is the number of states.
    max_episode_steps : int, optional

    Raises
    ------
    SettingsError
        An argument is not allowed.
    """
    ranges = (-math.pi, math.pi), (-math.pi, math.pi), (-6.0, 6.0), (-12.0, 12.0)
    return _game(Acrobot, bins, ranges, 3, reset_acrobot, step_acrobot, max_episode_steps)


@jit
def reset_acrobot(data, memory, random):
    """Return the first bin: each quantity is between -0.1 and 0.1."""
    for i in range(4):
        _put(memory, i, _uniform(random, i, -0.1, 0.1))
    return _observed(data, memory)


@jit_inline
def _accelerations(torque, angle_1, angle_2, turn_1, turn_2):
    """Return both angular accelerations (Sutton and Barto, section 11.3 of the first edition).

    Links have length and mass 1, their centers in the middle, and moment of inertia 1.
    """
    d1 = 0.25 + 1.25 + math.cos(angle_2) + 2.0
    d2 = 0.25 + 0.5 * math.cos(angle_2) + 1.0
    phi2 = 0.5 * 9.8 * math.cos(angle_1 + angle_2 - math.pi / 2)
    phi1 = (
        -0.5 * turn_2 * turn_2 * math.sin(angle_2)
        - turn_2 * turn_1 * math.sin(angle_2)
        + 1.5 * 9.8 * math.cos(angle_1 - math.pi / 2)
        + phi2
    )
    second = (torque + d2 / d1 * phi1 - 0.5 * turn_1 * turn_1 * math.sin(angle_2) - phi2) / (
        1.25 - d2 * d2 / d1
    )
    return -(d2 * second + phi1) / d1, second


@jit_inline
def _wrapped(angle):
    while angle > math.pi:
        angle -= 2 * math.pi
    while angle < -math.pi:
        angle += 2 * math.pi
    return angle


@jit
def step_acrobot(data, memory, state, action, random):
    """Apply the torque for 0.2 s, by one step of the fourth-order Runge-Kutta method."""
    torque = action - 1.0
    a1, a2 = _get(memory, 0), _get(memory, 1)
    t1, t2 = _get(memory, 2), _get(memory, 3)
    da1 = da2 = dt1 = dt2 = 0.0  # the weighted sum of the slopes
    s1, s2, r1, r2 = t1, t2, 0.0, 0.0  # the last slope: of the angles, and of their velocities
    for stage in range(4):
        h = 0.0 if stage == 0 else (0.2 if stage == 3 else 0.1)
        b1, b2 = a1 + h * s1, a2 + h * s2
        s1, s2 = t1 + h * r1, t2 + h * r2
        r1, r2 = _accelerations(torque, b1, b2, s1, s2)
        weight = 0.2 / 6.0 * (2.0 if 0 < stage < 3 else 1.0)
        da1, da2, dt1, dt2 = da1 + weight * s1, da2 + weight * s2, dt1 + weight * r1, dt2 + weight * r2
    a1, a2 = _wrapped(a1 + da1), _wrapped(a2 + da2)
    t1 = min(max(t1 + dt1, -4 * math.pi), 4 * math.pi)
    t2 = min(max(t2 + dt2, -9 * math.pi), 9 * math.pi)
    _put(memory, 0, a1)
    _put(memory, 1, a2)
    _put(memory, 2, t1)
    _put(memory, 3, t2)
    is_up = -math.cos(a1) - math.cos(a2 + a1) > 1.0
    return _observed(data, memory), 0.0 if is_up else -1.0, is_up
