"""Code of environments that was written anew since a study was begun, and code that was not."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import types

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from dist_classicrl import Sweep
from dist_classicrl.sweep.kept.environment_code import changed_code, code_of, keep_code

MODULE = """
import functools
import gymnasium

GOAL = 1.0
MAP = ("SF", "FG")
COUNT = 0
SEEN = {"x": 1}


def bonus(state, scale=2.0):
    return scale * (state in {"a", "b", "c"}) + GOAL


class Base(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)
    limit = 5

    @property
    def size(self):
        return len(MAP)


class Walk(Base):
    resets = 0

    def reset(self, *, seed=None, options=None):
        global COUNT
        super().reset(seed=seed)
        COUNT += 1
        type(self).resets += 1
        return 0, {}

    @functools.lru_cache
    def paid(self, action):
        return bonus(action)

    def step(self, action):
        SEEN["x"] += 1
        return int(action), self.paid(action), True, False, {}


def make():
    class Inner(Walk):
        def render(self):
            return [name for name in ("left", "right")]
    return Inner()
"""


@pytest.fixture(autouse=True)
def no_bytecode(monkeypatch):
    """Modules are edited here within a second and keep their size: Python would take old ones from disk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def module(folder, text=MODULE, name="walks"):
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def changed(folder, old, new):
    keep_code(folder, {"env": code_of(old)})
    return changed_code(folder, {"env": code_of(new)}).get("env", [])


@pytest.mark.parametrize(
    "old, new, parts",
    [
        ("GOAL = 1.0", "GOAL = 5.0", ["GOAL"]),
        ('"FG"', '"FH"', ["MAP"]),
        ("scale=2.0", "scale=3.0", ["bonus"]),
        ("scale * (", "scale + (", ["bonus"]),
        ("limit = 5", "limit = 6", ["Base.limit"]),
        ("return len(MAP)", "return 1 + len(MAP)", ["size"]),
        ("return bonus(action)", "return bonus(1 - action)", ["paid"]),
        ("True, False, {}", "True, True, {}", ["step"]),
        ("class Walk(Base)", "class Walk(gymnasium.Env)", ["Base"]),
        ('"left"', '"up"', ["make"]),
    ],
)
def test_what_is_other_is_told(tmp_path, old, new, parts):
    assert MODULE.count(old) == 1
    before, now = module(tmp_path).make, module(tmp_path, MODULE.replace(old, new)).make
    told = changed(tmp_path, before, now)
    assert told and all(any(part in each for each in told) for part in parts)


def test_a_class_is_followed_and_what_it_is_closed_over(tmp_path):
    def cell(goal):
        class Cell(gymnasium.Env):
            def step(self, action):
                return 0, goal, True, False, {}

        return Cell

    assert changed(tmp_path, cell(1.0), cell(1.0)) == []
    assert changed(tmp_path, cell(1.0), cell(5.0)) == ["goal"]
    assert changed(tmp_path, lambda: cell(1.0)(), lambda: cell(2.0)()) != []
    goals = [functools.partial(lambda goal: cell(goal)(), goal) for goal in (1.0, 5.0)]
    assert changed(tmp_path, *goals) == []  # what it is given is in the plan


def test_lines_comments_docstrings_and_use_change_nothing(tmp_path):
    before = module(tmp_path)
    other = MODULE.replace("\n\n\n", "\n\n\n# A comment.\n\n\n")
    for line, indent in (("def step(self, action):", 8), ("def make():", 4), ("class Inner(Walk):", 8)):
        assert other.count(f"{line}\n") == 1
        other = other.replace(f"{line}\n", f"{line}\n{' ' * indent}'''What it is.'''  # Said.\n\n")
    now = module(tmp_path, other)
    for name in ("make", "Walk"):
        assert changed(tmp_path, getattr(before, name), getattr(now, name)) == []
    env = now.Walk()
    env.reset()
    env.step(1)
    env.other = 3
    assert now.COUNT == now.Walk.resets == 1
    for name in ("make", "Walk"):
        assert changed(tmp_path, getattr(before, name), getattr(now, name)) == []


def test_code_of_libraries_is_not_followed():
    assert code_of(functools.partial(gymnasium.make, "FrozenLake-v1")).keys() <= {""}


def test_each_thing_that_is_taken_of_a_module_counts(tmp_path):
    text = """
import gymnasium, config

class Walk(gymnasium.Env):
    def step(self, action):
        return 0, config.bonus(action) * config.GOAL - config.cost(action), config.LIMIT, False, {}
"""
    config = "GOAL = 2.0\nLIMIT = 3\ndef bonus(x): return x + 1\ndef cost(x): return x + 2\n"

    def walk(config):
        made = module(tmp_path, text)
        made.config = module(tmp_path, config, "config_of_walk")
        return made.Walk

    (tmp_path / "config.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        for old, new, part in (
            ("GOAL = 2.0", "GOAL = 7.0", "config.GOAL"),
            ("LIMIT = 3", "LIMIT = 4", "config.LIMIT"),
            ("x + 1", "x + 3", "bonus"),
            ("x + 2", "x + 3", "cost"),
        ):
            assert changed(tmp_path, walk(config), walk(config.replace(old, new))) == [part]
        sys.modules.pop("config")


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec, None])
def test_a_class_behind_an_id_of_gymnasium_is_followed(tmp_path, monkeypatch, make):
    def walk(text):
        spec = EnvSpec("Walk-v0", entry_point=module(tmp_path, text).Walk)
        monkeypatch.setitem(gymnasium.registry, "Walk-v0", spec)
        return code_of(spec if make is None else functools.partial(make, "walks:Walk-v0"))

    old, same, new = (walk(text) for text in (MODULE, MODULE, MODULE.replace("GOAL = 1.0", "GOAL = 5.0")))
    keep_code(tmp_path, {"env": old})
    assert changed_code(tmp_path, {"env": same}) == {}
    assert changed_code(tmp_path, {"env": new}) == {"env": ["GOAL"]}


class Lazy(types.ModuleType):
    def __getattr__(self, name):
        raise RuntimeError(f"{name} is loaded")


LAZY = Lazy("lazy")


class Raises:
    @property
    def __class__(self):
        raise RuntimeError("nobody asks for that")


RAISES = Raises()


def test_no_code_of_others_is_run_and_nothing_that_goes_wrong_ends_a_study(tmp_path):
    class Looks(gymnasium.Env):
        def render(self):
            return LAZY.figure()

    class Asks(gymnasium.Env):
        def render(self):
            return RAISES

    assert "Looks.render" in code_of(Looks)
    assert code_of(Asks) == {}
    assert changed(tmp_path, Asks, Looks) == changed(tmp_path, Looks, Asks) == []


def test_a_long_chain_of_functions_is_followed(tmp_path):
    lines = [f"def f{number}(): return f{number + 1}()" for number in range(3000)]
    old, new = (module(tmp_path, "\n".join([*lines, f"def f3000(): return {x}"])) for x in (1, 2))
    assert changed(tmp_path, old.f0, new.f0) == ["f3000"]


def test_where_a_module_lies_and_what_it_loads_when_needed_changes_nothing(tmp_path):
    text = """
import gymnasium

KERNEL = None


def kernel(action):
    return float(action)


class Walk(gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        global KERNEL, json
        if KERNEL is None:
            import json
            KERNEL = kernel
        return 0, {}

    def step(self, action):
        return len(json.dumps(__file__ + __name__)), KERNEL(action), True, False, {}
"""
    (tmp_path / "other").mkdir()
    before, now = module(tmp_path, text), module(tmp_path / "other", text, "others")
    used = module(tmp_path, text)
    used.Walk().reset()
    assert used.KERNEL is used.kernel
    assert changed(tmp_path, before.Walk, now.Walk) == changed(tmp_path, before.Walk, used.Walk) == []
    other = module(tmp_path, text.replace("float(action)", "2.0 * action"))
    assert changed(tmp_path, before.Walk, other.Walk) == ["kernel"]


def test_code_that_pytest_rewrites_is_not_compared_with_what_it_does_not(tmp_path, monkeypatch):
    keep_code(tmp_path, {"env": {"a": "1"}})
    hooks = [each for each in sys.meta_path if type(each).__name__ != "AssertionRewritingHook"]
    assert len(hooks) < len(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", hooks)
    assert changed_code(tmp_path, {"env": {"a": "2"}}) == {}
    keep_code(tmp_path, {"env": {"a": "1"}})
    assert changed_code(tmp_path, {"env": {"a": "2"}}) == {"env": ["a"]}


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "work"])
def test_libraries_lie_in_more_than_one_place(tmp_path, monkeypatch, folder):
    (tmp_path / folder).mkdir()
    made = module(tmp_path / folder)
    monkeypatch.setitem(sys.modules, "walks", made)
    assert ("step" in " ".join(code_of(made.Walk))) is (folder == "work")


@pytest.mark.slow
def test_another_process_tells_the_same_of_the_same_code(tmp_path):
    (tmp_path / "walks.py").write_text(MODULE)
    program = (
        "import json, walks; from dist_classicrl.sweep.kept.environment_code import code_of; "
        "print(json.dumps([code_of(walks.make), code_of(lambda: walks.Walk())]))"
    )
    told = set()
    for seed in ("1", "2", "3"):
        paths = os.pathsep.join([str(tmp_path), *sys.path])
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        told.add(subprocess.check_output([sys.executable, "-c", program], env=environment, text=True))
    (one,) = told
    assert all(len(each) > 5 for each in json.loads(one))


def test_code_of_another_python_and_of_earlier_versions_is_not_compared(tmp_path):
    assert changed_code(tmp_path, {"env": {"a": "1"}}) == {}
    keep_code(tmp_path, {"env": {"a": "1"}})
    assert changed_code(tmp_path, {"env": {"a": "2"}, "new": {"a": "1"}}) == {}
    assert changed_code(tmp_path, {"env": {"a": "2", "b": "1"}}) == {"env": ["a", "b"]}
    (file,) = tmp_path.iterdir()
    there = json.loads(file.read_text())
    file.write_text(json.dumps(there | {"python": "another"}))
    assert changed_code(tmp_path, {"env": {"a": "2"}}) == {}
    for text in ("", "[]", '{"python": 1}', "{"):
        file.write_text(text)
        assert changed_code(tmp_path, {"env": {"a": "2"}}) == {}


def test_a_study_that_goes_on_with_another_environment_of_the_same_name_warns(tmp_path, caplog):
    def run(text, folder=tmp_path / "study", seeds=3):
        caplog.clear()
        env = module(tmp_path, text).Walk
        study = Sweep(env, 50, seeds, points=2, eval_episodes=2, folder=folder).run(1)
        return study.rows()[0]["final_return"], [each.message for each in caplog.records]

    assert run(MODULE, seeds=2) == (1.0, [])
    assert run(MODULE) == (1.0, [])
    before = sorted(path.name for path in (tmp_path / "study").iterdir())
    returned, said = run(MODULE.replace("GOAL = 1.0", "GOAL = 5.0"))
    assert returned == 1.0 and len(said) == 1
    assert "The code of walks.Walk is not what the study in" in said[0] and ": GOAL. Runs" in said[0]
    assert sorted(path.name for path in (tmp_path / "study").iterdir()) == before
    (tmp_path / "study" / "environment_code.json").unlink()  # as in one of an earlier version
    assert run(MODULE.replace("GOAL = 1.0", "GOAL = 5.0")) == (1.0, [])
    assert not (tmp_path / "study" / "environment_code.json").exists()
    assert run(MODULE.replace("GOAL = 1.0", "GOAL = 5.0"), tmp_path / "another") == (5.0, [])
