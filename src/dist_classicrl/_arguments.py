"""Names that people of this field type, and what they are called here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dist_classicrl._words import closest, nearest
from dist_classicrl.errors import MissingArgumentError, UnknownArgumentError, UnknownAttributeError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

_OTHER_NAMES = {
    "action_mask": "action_masks legal_actions mask masks",
    "action_size": "n_actions num_actions",
    "algorithm": "algo method rule",
    "buffer_size": "memory_size replay_size",
    "callbacks": "callback",
    "checkpoint_dir": "checkpoint_folder checkpoint_path checkpoints run_dir save_dir save_path",
    "checkpoint_interval": "checkpoint_every checkpoint_freq save_every save_freq save_interval",
    "discount_factor": "discount discount_rate gamma",
    "env": "env_id env_name environment",
    "episodes": "eval_episodes n_episodes n_eval_episodes num_episodes",
    "epsilon": "eps exploration exploration_prob exploration_rate",
    "learning_rate": "alpha lr step_size",
    "n_envs": "n_env num_envs",
    "observation": "obs state observations states",
    "path": "file filename filepath",
    "progress_interval": "report_interval",
    "replay_ratio": "gradient_steps",
    "seed": "random_seed random_state",
    "state_size": "n_states num_states",
    "time_limit": "max_seconds max_time",
    "total_steps": "max_steps n_steps n_timesteps num_steps num_timesteps timesteps total_timesteps",
    "use_action_mask": "mask_actions use_mask use_masks",
}
OURS = {other: ours for ours, others in _OTHER_NAMES.items() for other in others.split()}
"""What an argument is called here that is often called something else."""

_IN_STEPS = "training is counted in steps, total_steps=100_000, or in episodes: write total_episodes=1_000."
_NO_NETWORK = "the table is the policy: leave it out."
_NOT_RECURRENT = "nothing is recurrent here, and the observation alone decides: leave it out."
_RANKS = "workers are processes that mpirun starts: type mpirun -n 4 python and your script's name."
_SCHEDULE = "write epsilon=Linear(1.0, 0.05, steps=100_000), from dist_classicrl.schedules."
_FOLDER = "write train(callbacks=TensorBoardCallback(folder)), from dist_classicrl.callbacks."
_EVALUATION = (
    'write train(callbacks=EvalCallback("FrozenLake-v1", eval_freq=100_000)), from dist_classicrl.callbacks.'
)
_NO_OBJECTS = "a model file holds settings and arrays, and no objects of Python: leave it out."
_NO_TARGETS = "there is no target network, and targets are of the table as it is: leave it out."
_ADVICE = {
    **dict.fromkeys(
        ("desc", "env_args", "env_kwargs", "is_rainy", "is_slippery", "make_kwargs", "map_name"),
        'arguments of an environment are given when it is made: write env=gym.make("FrozenLake-v1", '
        "is_slippery=False).",
    ),
    "custom_objects": _NO_OBJECTS,
    "deterministic": "the answer is always the best action: leave it out.",
    "episode_start": _NOT_RECURRENT,
    "episodes": _IN_STEPS,
    "eval_env": _EVALUATION,
    "eval_freq": _EVALUATION,
    "exploration_final_eps": _SCHEDULE,
    "exploration_fraction": _SCHEDULE,
    "exploration_initial_eps": _SCHEDULE,
    "learning_starts": "learning begins with the first step: leave it out.",
    "log_interval": "reports are seconds apart, and not episodes: write train(progress_interval=10.0).",
    "max_episode_steps": "wrap the environment in gymnasium.wrappers.TimeLimit, or give it to its model.",
    "n_episodes": _IN_STEPS,
    "n_jobs": _RANKS,
    "n_steps": "there are no rollouts, and each step is learned from: leave it out. A rule of n steps is "
    "written DistAsyncQLearning(algorithm=NStepSarsa(n=5)), from dist_classicrl.rules.",
    "n_workers": _RANKS,
    "num_episodes": _IN_STEPS,
    "num_workers": _RANKS,
    "options": "reset is called without any: write a gymnasium.Wrapper whose reset(self, *, seed=None, "
    "options=None) returns self.env.reset(seed=seed, options={...}), and give it the environment.",
    "policy": _NO_NETWORK,
    "policy_kwargs": _NO_NETWORK,
    "print_system_info": _NO_OBJECTS,
    "render": "nothing is drawn: leave it out, or write a callback that draws.",
    "reset_num_timesteps": "train() goes on where it stopped, and another agent begins anew: leave it out.",
    "return_episode_rewards": "the result has each episode: read .returns and .lengths of it.",
    "reward_threshold": "read .mean_return of what evaluate(env) returns; to end a training there, write "
    "EvalCallback(env, callback_on_new_best=StopTrainingOnRewardThreshold(0.7)).",
    "state": _NOT_RECURRENT,
    "target_update_interval": _NO_TARGETS,
    "tau": _NO_TARGETS,
    "tb_log_name": _FOLDER,
    "tensorboard_log": _FOLDER,
    "train_freq": "all steps are learned, and replay_ratio=1.0 learns another one from replay for each.",
    "warn": "there is no warning that it would leave out: leave it out.",
}

_OF_COMPARE = (
    ', the name of a variant, as in compare({"FrozenLake-v1": {"a": [0.1, 0.3], "b": [0.2, 0.5]}}, "a", "b")'
)
_NEEDED = {
    "env": ', the environment, such as "FrozenLake-v1": an agent keeps none',
    "first": _OF_COMPARE,
    "observation": ", one observation or a batch of them",
    "path": ", the path of a file",
    "second": _OF_COMPARE,
    "start_prob": ", the probability of each state to begin an episode in",
}

_ATTRIBUTES = {
    "train(env, total_steps=100_000)": "fit",
    "predict(observation)": "act choose_action get_action select_action",
    "policy": "pi",
    "action_values(observation)": "get_q q_values",
    "state_values(observation)": "V get_value v_table value values",
    "q_table": "Q q q_tables qtable table",
    "visits": "N counts",
    "evaluate(env)": "evaluate_policy test",
    "save_model(path)": "export save",
    "load_model(path)": "load",
    "steps": "n_steps num_timesteps total_steps total_timesteps",
    "epsilon": "eps exploration_rate",
    "learning_rate": "alpha lr",
}
OF_AGENT = {other: ours for ours, others in _ATTRIBUTES.items() for other in others.split()}
"""What an attribute or method of an agent is called here that is often called something else."""

_NO_ENVIRONMENT = "the environment is given to train(env) and evaluate(env)."
_IS_TABLE = "what is learned is the table: read agent.q_table, or assign it."
_NOT_OF_AGENT = {
    **dict.fromkeys(("env", "get_env", "set_env"), _NO_ENVIRONMENT),
    **dict.fromkeys(("get_parameters", "q_net", "q_net_target", "set_parameters"), _IS_TABLE),
    "logger": 'log lines are those of logging.getLogger("dist_classicrl"), and numbers are recorded in a '
    "callback, with its record(name, value).",
    "set_logger": _FOLDER,
    "verbose": "it is given to train(env, verbose=1).",
    **{
        name: _ADVICE[name]
        for name in (
            "exploration_final_eps",
            "exploration_fraction",
            "exploration_initial_eps",
            "learning_starts",
            "policy_kwargs",
            "target_update_interval",
            "tau",
            "tensorboard_log",
            "train_freq",
        )
    },
}
"""What agents of other libraries have, and what to do here."""

_EPISODES = "of episodes, read .mean_return and .reports of what train(env) returns."
_KEPT_ELSEWHERE = {
    **dict.fromkeys(("get_vec_normalize_env", "render", "step"), _NO_ENVIRONMENT),
    **dict.fromkeys(
        ("action_space", "nA", "nS", "observation_space"),
        "spaces are those of the environment, env.observation_space and env.action_space; "
        "agent.q_table.shape says how many states and actions there are.",
    ),
    **dict.fromkeys(
        ("ep_info_buffer", "episode_rewards", "history", "rewards", "training_history"), _EPISODES
    ),
    "callback": "callbacks are given to train(env, callbacks=...).",
    "replay_buffer": "with replay_ratio above 0 each worker has one of its own, of buffer_size transitions.",
    "reset": "train(env) goes on where it stopped, and another agent begins anew.",
    "set_random_seed": "it is given to DistAsyncQLearning(seed=...), and stays.",
}
"""Likewise; but an attribute of one's own may be called so."""

OF_RESULT = {
    name: f"agent.{ours}, of the agent that was trained"
    for ours, others in _ATTRIBUTES.items()
    for name in (ours.partition("(")[0], *others.split())
} | {
    **dict.fromkeys(
        [*_ATTRIBUTES["steps"].split(), "timesteps"],
        "result.steps, of this call, or agent.steps, of all calls",
    ),
    **dict.fromkeys(("ep_rew_mean", "mean_reward"), "result.mean_return"),
    **dict.fromkeys(
        ("episode_rewards", "returns", "rewards"),
        "result.mean_return, of all its episodes, or that of each report: single ones are not kept",
    ),
    "history": "result.reports",
}
"""What to write for what an agent has, or a result elsewhere, and the result of its training has not."""

OF_EVALUATION = {
    "episode_lengths": "result.lengths",
    "episode_rewards": "result.returns",
    "mean_reward": "result.mean_return",
    "rewards": "result.returns",
    "std_reward": "result.std_return",
}
"""What to write for what evaluations of other libraries have."""

OF_POLICY = {
    "act": "policy(observation)",
    "forward": "policy(observation)",
    "predict": "policy(observation)",
    "predict_values": "policy.values, which has that of each state, or agent.state_values(observation)",
    "q_table": "policy.q",
}
"""What to write for what policies of other libraries have."""

_SET = ("epsilon", "learning_rate", "max_states")
"""Settings that can be set on an agent; the others stay as it was made with."""

_INSTEAD = {
    "policy": "it is that of the table: assign q_table.",
    "seed": "it is given to DistAsyncQLearning(seed=...), and stays.",
    "settings": "they are given to DistAsyncQLearning(...), and stay, but for epsilon, learning_rate and "
    "max_states, which are set on the agent.",
    "steps": "train() counts them, and another agent begins at 0.",
    "visits": "write into the array between calls of train(), agent.visits[:] = 0.",
}

_takes: dict[str, frozenset[str]] = {}  # the arguments of each function, by what it is called in a message

_MISTYPED = 0.85
"""How like a name is to one that has a letter too many or too few in seven, or another one; from 0 to 1."""

_LIKELIEST = ("DistAsyncQLearning", "train", "learn")
"""Whose an argument is said to be, where others have it as well."""


def named_arguments(called: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a function answer arguments that it does not have with `UnknownArgumentError`, which names its own.

    `called` is the function's name in the message.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        _takes[called] = frozenset(_parameters(function))
        return _checked(function, called, {})

    return decorate


def named_constructor(**ours: str) -> Callable[[type[_T]], type[_T]]:
    """Let a class answer arguments that it does not have likewise; `ours` has its own name for some."""

    def decorate(kind: type[_T]) -> type[_T]:
        made_by: Any = kind
        made_by.__init__ = _checked(made_by.__init__, kind.__name__, ours)
        return kind

    return decorate


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    given = inspect.signature(function).parameters
    return {name: each for name, each in given.items() if name not in ("self", "cls")}


def _checked(function: Callable[_P, _R], called: str, synonyms: Mapping[str, str]) -> Callable[_P, _R]:
    names = _parameters(function)
    first = len(inspect.signature(function).parameters) - len(names)  # 1 where there is self or cls
    needed = [
        (place, name) for place, (name, each) in enumerate(names.items(), first) if each.default is each.empty
    ]

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name, value in kwargs.items():
            if name not in names:
                ours = synonyms.get(name) or OURS.get(name, name)
                given = {*list(names)[: max(0, len(args) - first)], *map(str, kwargs)}
                raise UnknownArgumentError(_unknown_argument(called, name, ours, value, names, given))
        for place, name in needed:
            if place >= len(args) and name not in kwargs:
                raise MissingArgumentError(
                    f"{called}() needs {name}{_NEEDED.get(name, '')}. Write {called}({name}=...)."
                )
        return function(*args, **kwargs)

    return checked


def _written(name: str, value: Any) -> str:
    """Return what somebody types who gives an argument."""
    is_short = value is None or isinstance(value, (bool, float, int, str)) and len(str(value)) < 40
    return f"{name}={value!r}" if is_short else f"{name}=..."


def _unknown_argument(
    called: str, name: str, ours: str, value: Any, names: Iterable[str], given: Collection[str]
) -> str:
    written = _written(ours, value)
    if ours in names and ours not in given:
        return f"{name} is called {ours} here: write {called}({written})."
    no_such = f"{called}() has no argument {name}"
    if name in _ADVICE:
        return f"{no_such}: {_ADVICE[name]}"
    if ours in names:
        return f"{no_such}: it is called {ours} here, which is given, too. Leave {name} out."
    if called == "load_model" and ours in _takes["DistAsyncQLearning"]:
        return f"{no_such}: an agent is loaded with the settings that it was saved with. {_other(written)}"
    for other in (*_LIKELIEST, *_takes):
        if ours in _takes.get(other, ()):
            return f"{no_such}: {ours} is one of {other}(). Write {other}({written}) there."
    return f"{no_such}.{nearest(name, names)} It takes {', '.join(sorted(names))}."


def _other(written: str) -> str:
    """Return how an agent goes on with another setting, which is `written` as it is given."""
    name, _, value = written.partition("=")
    if name in _SET:
        return f"Set it on the agent: agent.{name} = {value}."
    return (
        f"To go on with another, make an agent with it and give that the table: "
        f"other = DistAsyncQLearning({written}), then other.q_table = agent.q_table."
    )


def unknown_attribute(owner: object, name: str) -> UnknownAttributeError:
    """Return the error for an attribute that an agent does not have."""
    kind = owner if isinstance(owner, type) else type(owner)
    holder = f"type object {kind.__name__!r}" if kind is owner else f"{kind.__name__!r} object"
    no_such = f"{holder} has no attribute {name!r}"
    if kind is not owner and "_state" not in vars(owner):
        return UnknownAttributeError(
            f"{no_such} yet: begin __init__ of {type(owner).__name__} with super().__init__(...), which "
            "makes it an agent."
        )
    if name in OF_AGENT:
        return UnknownAttributeError(f"{no_such}: it is called {OF_AGENT[name]} here.")
    if advice := _NOT_OF_AGENT.get(name) or _KEPT_ELSEWHERE.get(name):
        return UnknownAttributeError(f"{no_such}: {advice}")
    ours = OURS.get(name, name)
    if ours in _takes.get("DistAsyncQLearning", ()) and ours not in dir(type(owner)):
        stays = f"{no_such}: {ours} is given to DistAsyncQLearning(...), and stays."
        read = "" if ours == "comm" else f" Read it as agent.settings.{ours}. {_other(f'{ours}=...')}"
        return UnknownAttributeError(stays + read)
    meant = closest(name, [*dir(owner), *_names_of_settings()])
    return UnknownAttributeError(
        f"{no_such}." + ("" if meant is None else f" Did you mean {OURS.get(meant, meant)!r}?")
    )


def other_names(advice: Mapping[str, str]) -> Callable[[type[_T]], type[_T]]:
    """Let a class say what to write in place of attributes that it does not have, which `advice` names."""

    def decorate(kind: type[_T]) -> type[_T]:
        def miss(self: _T, name: str) -> None:
            no_such = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in advice:
                raise UnknownAttributeError(f"{no_such}: write {advice[name]}.")
            raise AttributeError(no_such, name=name, obj=self)

        made: Any = kind
        made.__getattr__ = miss
        return kind

    return decorate


def means_another(name: str) -> bool:
    """Return whether who sets an attribute of an agent by this name has meant, or mistyped, another one."""
    if name in OF_AGENT or name in _NOT_OF_AGENT:
        return True
    known = ["q_table", *_names_of_settings()]
    return not name.startswith("_") and closest(name, known, _MISTYPED) is not None


def _names_of_settings() -> list[str]:
    """Return what settings of an agent are called, here and elsewhere."""
    settings = _takes.get("DistAsyncQLearning", frozenset())
    return [*settings, *(other for other, ours in OURS.items() if ours in settings)]


def read_only_attribute(owner: object, name: str) -> UnknownAttributeError:
    """Return the error for an attribute of an agent, or a method, that cannot be set."""
    instead = _INSTEAD.get(name, "set are epsilon, learning_rate, max_states and q_table.")
    if callable(getattr(type(owner), name)):
        instead = (
            f"it is a method. Write a class of your own, of {type(owner).__name__}, that has another {name}."
        )
    return UnknownAttributeError(f"{name} of {type(owner).__name__!r} object cannot be set: {instead}")


def unset_settings(kind: type[_T]) -> type[_T]:
    """Let a frozen dataclass of settings answer who sets one by how an agent goes on with another."""

    def refuse(self: _T, name: str, value: Any) -> None:
        ours = OURS.get(name, name)
        instead = _other(_written(ours, value)) if ours in vars(self) else nearest(ours, vars(self)).lstrip()
        stay = f"{name} cannot be set: {kind.__name__} stay as they are."
        raise UnknownAttributeError(f"{stay} {instead}".strip())

    made: Any = kind
    made.__setattr__ = refuse
    return kind
