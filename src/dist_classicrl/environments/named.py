"""The environment that a command names: a Gymnasium id, `module:name`, or a built-in name."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dist_classicrl._words import closest, error_told, exit_called, nearest
from dist_classicrl.errors import EnvError, SettingsError
from dist_classicrl.process.signals import is_meant

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

# What makes it, and its default arguments.
BUILT_IN: dict[str, tuple[str, dict[str, Any]]] = {
    "garnet": (
        "dist_classicrl.environments.model:TabularMDP.garnet",
        {"n_states": 1000, "n_actions": 4, "branching": 3, "seed": 0},
    ),
    "pocket_cube": ("dist_classicrl.environments.pocket_cube:pocket_cube", {"half_turns": False}),
    "tictactoe": ("dist_classicrl.environments.tictactoe.env:TicTacToeEnv", {}),
}

_GYMNASIUM_ID = re.compile(r"(?:.+[:/])?[^:/]+-v\d+")
_FUNCTION = re.compile(r"([\w.]+):([\w.]+)")
_WORDS = {"true": True, "false": False}


def parse_arguments(words: Iterable[str]) -> dict[str, Any]:
    """Return the keyword arguments that words of the form ``name=value`` stand for.

    A value is a Python literal, or text: ``is_slippery=False``, ``map_name=8x8``, ``desc=["SF", "HG"]``.
    A tuple becomes a list, as the file of a run (TOML) has it. SettingsError if a word has another form, or a
    value has no form in TOML, as None has not.
    """
    arguments = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise SettingsError(
                f"An argument of the environment has the form name=value, such as is_slippery=False; got "
                f"{word!r}."
            )
        arguments[name] = _value(name, text)
    return arguments


def _value(name: str, text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return _plain(value, f"{name}={text}")


def _plain(value: Any, word: str) -> Any:
    """Return a value in the form that TOML has for it."""
    if isinstance(value, (int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each, word) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, word) for key, each in value.items()}
    raise SettingsError(
        f"{word} holds {value!r}, for which the file of the run has no form: numbers, text, True, False, and "
        "lists and dicts (with text as keys) of them are allowed. Leave the argument out for its default, "
        "put text in quotes of its own, or make the environment in a function and write module:function."
    )


def make(name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Return the environment of this name in a form that `train` and `evaluate` take.

    The name is a Gymnasium id, ``module:name``, or one of `BUILT_IN`; what makes the environment gets the
    arguments. In a module that is a function or class that makes it, or itself an environment, a TabularMDP
    or a CompiledSimulator. EnvError if there is no such environment, or it does not take them.
    """
    given = dict(arguments or {})
    if name in BUILT_IN:
        path, defaults = BUILT_IN[name]
        return _made_by(_function(path), name, {**defaults, **given})
    if _GYMNASIUM_ID.fullmatch(name):
        return _of_gymnasium(name, given)
    if _FUNCTION.fullmatch(name):
        if name.partition(":")[0].endswith(".py") and (hint := _meant_function(name)):
            raise EnvError(f"{name!r} names a file, and a module is needed.{hint}")
        return _of_module(name, given)
    raise EnvError(_no_such(name))


def check_id(name: str) -> None:
    """Raise EnvError where no environment has this name; what it would take a module to know passes."""
    if ":" in name or name in BUILT_IN:
        return
    if not _GYMNASIUM_ID.fullmatch(name):
        raise EnvError(_no_such(name))
    _spec_of(name, name)


def _no_such(name: str) -> str:
    import gymnasium

    from dist_classicrl.environments.problems.registry import NAMESPACE

    module, colon, meant = name.rpartition(":")
    if f"{NAMESPACE}/{meant}" in gymnasium.registry:
        meant = f"{NAMESPACE}/{meant}"
    match = closest(meant, [*([] if colon else BUILT_IN), *gymnasium.registry])
    # What its module registers is not there without it.
    hint = _meant_function(name) or ("" if match is None else f" Did you mean {f'{module}{colon}{match}'!r}?")
    return (
        f"There is no environment {name!r}.{hint} It is a Gymnasium id such as FrozenLake-v1, "
        f"module:function, module:Id of one that the module registers, or one of {', '.join(BUILT_IN)}."
    )


def _meant_function(name: str) -> str:
    """Return a question for ``module.function`` and ``module.py:function``, if there is such a module."""
    module, colon, function = name.replace(".py:", ":").replace("/", ".").rpartition(":")
    if not colon:
        module, _, function = name.rpartition(".")
    _look_here()
    try:
        is_there = bool(module) and function != "py" and find_spec(module) is not None
    except (ImportError, ValueError):
        return ""
    meant = f"{module}:{function}"
    return f" Did you mean {meant!r}?" if is_there and meant != name else ""


def _of_gymnasium(name: str, arguments: dict[str, Any]) -> Any:
    import gymnasium

    from dist_classicrl.environments.problems import registry

    module, _, own_name = name.rpartition(":")
    if module:
        _imported(module)  # it registers the name
    spec = _spec_of(own_name, name)
    factory = partial(gymnasium.make, name, **arguments)
    entry: Any = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    if "problem" in spec.kwargs and spec.namespace == registry.NAMESPACE:
        creator = registry.problem_of(own_name).function
    return _checked(factory, name, arguments, _parameters(creator, gymnasium.make))


def _spec_of(own_name: str, name: str) -> EnvSpec:
    """Return what Gymnasium knows under an id, which was given as `name`; EnvError where that is nothing."""
    import gymnasium

    from dist_classicrl.environments.problems import registry  # noqa: F401 (it registers some)

    try:
        return gymnasium.spec(own_name)
    except gymnasium.error.Error as error:
        raise EnvError(_no_such(name)) from error


def _of_module(name: str, arguments: dict[str, Any]) -> Any:
    import gymnasium

    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.environments.simulate import CompiledSimulator

    found = _named(name)
    ready = (CompiledSimulator, TabularMDP, gymnasium.Env, gymnasium.vector.VectorEnv)
    if not isinstance(found, ready):
        return _made_by(_function(name), name, arguments)
    if arguments:
        raise EnvError(
            f"{name} is a {type(found).__name__} that is made already and takes no argument, such as "
            f"{next(iter(arguments))!r}. Name a function that takes it and returns one."
        )
    return found


def _made_by(function: Callable[..., Any], name: str, arguments: dict[str, Any]) -> Any:
    return _checked(partial(function, **arguments), name, arguments, _parameters(function))


def _checked(factory: Callable[[], Any], name: str, arguments: dict[str, Any], known: list[str]) -> Any:
    """Make it once, to see whether that works; return a model as it is, and for others the factory."""
    wrong = [each for each in arguments if known and each not in known]
    if wrong:
        raise EnvError(
            f"{name} takes no argument {wrong[0]!r}.{nearest(wrong[0], known)} It takes {', '.join(known)}."
        )
    import gymnasium

    with _without_exit(name):
        try:
            made = factory()
            if isinstance(made, gymnasium.Env):
                made.close()
        except Exception as error:
            raise EnvError(
                f"{name} cannot be made with {arguments or 'no arguments'}: {error_told(error)}"
            ) from error
    from dist_classicrl.environments.function_model import FunctionMDP
    from dist_classicrl.environments.model import TabularMDP
    from dist_classicrl.environments.simulate import CompiledSimulator

    if isinstance(made, gymnasium.Env):
        return factory
    if not isinstance(made, (gymnasium.vector.VectorEnv, TabularMDP, FunctionMDP, CompiledSimulator)):
        raise EnvError(
            f"{name} returned {made!r}, which is no environment. Name a function that returns a "
            "gymnasium.Env, a gymnasium.vector.VectorEnv, a TabularMDP, a FunctionMDP or a CompiledSimulator."
        )
    return made


def _parameters(*functions: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that the functions take; none where the first takes any."""
    names: list[str] = []
    for function in functions:
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD and function is functions[0]:
                return []
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                names.append(parameter.name)
    return [name for name in names if name not in ("self", "id")]


def _function(path: str) -> Callable[..., Any]:
    """Return the function or class that ``module:function`` names."""
    found = _named(path)
    if not callable(found):
        raise EnvError(
            f"{path} is neither an environment nor a function that returns one, but {found!r}. Name a "
            "function or class, or a gymnasium.Env, TabularMDP or CompiledSimulator."
        )
    function: Callable[..., Any] = found
    return function


def _named(path: str) -> Any:
    """Return what ``module:name`` names."""
    module_name, _, name = path.partition(":")
    found: Any = _imported(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            known = [each for each in vars(found) if not each.startswith("_")]
            raise EnvError(f"The module {module_name!r} has no {name!r}.{nearest(part, known)}")
        found = getattr(found, part)
    return found


def _imported(name: str) -> Any:
    """Return a module, which may also lie in the current folder, as under `python -m`."""
    if name.startswith("."):
        raise EnvError(
            f"{name!r} is relative to no package. Write the whole name of the module, without a dot."
        )
    _look_here()
    try:
        with _without_exit(f"The module {name!r}"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise EnvError(
            f"There is no module {error.name!r} in {os.getcwd()} or where Python looks for modules. Write "
            "module:function, without .py."
        ) from error


@contextmanager
def _without_exit(what: str) -> Iterator[None]:
    """Raise an EnvError in place of a SystemExit, which would end a command, or a rank, without a word."""
    try:
        yield
    except SystemExit as error:
        if type(error) is not SystemExit or is_meant(error):  # of a stop or a signal
            raise
        called, where = exit_called(error)
        raise EnvError(
            f"{what} calls {called}{where} and makes no environment. Let it raise an exception that says "
            "what is wrong, or return one."
        ) from error


def _look_here() -> None:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
