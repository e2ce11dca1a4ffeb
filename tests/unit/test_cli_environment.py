import signal
import sys

import gymnasium
import pytest

from dist_classicrl.cli.commands.train import command
from dist_classicrl.cli.main import main
from dist_classicrl.environments.model import TabularMDP
from dist_classicrl.environments.named import BUILT_IN, make, parse_arguments
from dist_classicrl.environments.resolve import resolve
from dist_classicrl.errors import EnvError, SettingsError, TrainingStopped

MODULE = """
import gymnasium
from dist_classicrl import CompiledSimulator
from dist_classicrl.cli.commands.train import command
from dist_classicrl.environments.model import TabularMDP

def model(n_states=7):
    return TabularMDP.garnet(n_states, 2, 2, seed=0)

def lake(size=4, **others):
    return gymnasium.make("FrozenLake-v1", map_name=f"{size}x{size}", **others)

class Closing(gymnasium.Wrapper):
    left_open = []

    def __init__(self):
        super().__init__(gymnasium.make("FrozenLake-v1"))
        self.left_open.append(self)

    def close(self):
        self.left_open.remove(self)

def fails():
    raise RuntimeError("no licence")

number = 3
ready = model()
game = CompiledSimulator.from_model(ready)
env = gymnasium.make("FrozenLake-v1")
gymnasium.register("Mine-v0", entry_point="gymnasium.envs.toy_text:FrozenLakeEnv")
gymnasium.register("Any-v0", entry_point=lake)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the current folder, which Python does not look through by itself."""
    (tmp_path / "worlds_to_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "worlds_to_test"
    sys.modules.pop("worlds_to_test", None)
    for name in ("Mine-v0", "Any-v0"):
        gymnasium.registry.pop(name, None)


def test_words_are_arguments():
    words = [
        "a=1",
        "b=8x8",
        "c=False",
        "d=true",
        'e=["SF", "HG"]',
        "f='x=y'",
        "g=1e3",
        "h=",
        "i=x=y",
        "j={[1]: 2}",
    ]
    assert parse_arguments(words) == {
        **{"a": 1, "b": "8x8", "c": False, "d": True, "e": ["SF", "HG"], "f": "x=y", "g": 1000.0},
        **{"h": "", "i": "x=y", "j": "{[1]: 2}"},
    }
    assert parse_arguments(["pair=(3, (4, 5))", "map={'a': (1,)}", "text='None'"]) == {
        "pair": [3, [4, 5]],
        "map": {"a": [1]},
        "text": "None",
    }


@pytest.mark.parametrize(
    "word", ["desc=None", "desc=[1, None]", "desc={'a': None}", "desc={1: 2}", "desc=b'a'"]
)
def test_a_value_that_the_file_of_a_run_cannot_hold_is_refused(word):
    with pytest.raises(SettingsError, match=r"desc=.* holds .*module:function"):
        parse_arguments([word])


@pytest.mark.parametrize("word", ["8x8", "=8", "a b=1"])
def test_a_word_that_is_no_argument_is_refused(word):
    with pytest.raises(SettingsError, match="name=value"):
        parse_arguments([word])


def test_the_help_of_train_names_all_that_are_built_in():
    text = " ".join(command.help.split())
    assert all(name in text for name in (*BUILT_IN, "FunctionMDP"))


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_environments_need_no_arguments(name):
    assert resolve(make(name), 1, None).simulator is not None


def test_arguments_reach_what_makes_the_environment(module):
    assert make(f"{module}:Mine-v0", {"map_name": "8x8"})().observation_space.n == 64
    assert make(f"{module}:Any-v0", {"size": 8, "is_slippery": False})().observation_space.n == 64
    assert make("garnet", {"n_states": 9}).n_states == 9
    assert make("FrozenLake-v1", {"map_name": "8x8"})().observation_space.n == 64
    assert make("FrozenLake-v1", {"max_episode_steps": 3})().spec.max_episode_steps == 3
    assert make(f"{module}:model", {"n_states": 5}).n_states == 5
    assert make(f"{module}:lake", {"size": 8, "is_slippery": False})().observation_space.n == 64


def test_what_makes_environments_is_given_so_that_copies_can_be_made(module):
    factory = make(f"{module}:lake")
    assert factory() is not factory()
    assert isinstance(make(f"{module}:model"), TabularMDP)
    factory = make(f"{module}:Closing")  # which makes one, to see whether that works
    left_open = sys.modules[module].Closing.left_open
    assert left_open == [] and left_open == [factory()]


@pytest.mark.parametrize("name", ["ready", "game", "env"])
def test_a_module_may_name_what_is_ready_to_be_learned_in(module, name):
    made = make(f"{module}:{name}")
    assert made is getattr(sys.modules[module], name)
    assert resolve(made, 1, None).n_states == (16 if name == "env" else 7)


@pytest.mark.parametrize(
    "name, arguments, match",
    [
        ("FrozenLake-v9", {}, "Did you mean 'FrozenLake-v1'?"),
        ("FrozenLak", {}, "Did you mean 'FrozenLake-v1'?"),
        ("granet", {}, "Did you mean 'garnet'?"),
        ("FrozenLake-v1", {"slippery": True}, "no argument 'slippery'. Did you mean 'is_slippery'?"),
        ("worlds_to_test:Any-v0", {"slippery": True}, "cannot be made with {'slippery': True}: TypeError"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "cannot be made with {'map_name': '9x9'}: KeyError"),
        ("garnet", {"states": 5}, "Did you mean 'n_states'?"),
        ("nowhere_at_all:f", {}, "no module 'nowhere_at_all'"),
        ("nowhere_at_all:F-v0", {}, "no module 'nowhere_at_all'"),
        (".worlds_to_test:model", {}, "'.worlds_to_test' is relative to no package"),
        (".worlds_to_test:Mine-v0", {}, "'.worlds_to_test' is relative to no package"),
        ("worlds_to_test:Mnie-v0", {}, "'worlds_to_test:Mnie-v0'. Did you mean 'worlds_to_test:Mine-v0'?"),
        ("worlds_to_test:modle", {}, "has no 'modle'. Did you mean 'model'?"),
        ("worlds_to_test:number", {}, "is neither an environment nor a function that returns one, but 3"),
        ("worlds_to_test:ready", {"n_states": 5}, "ready is a TabularMDP that is made already"),
        ("worlds_to_test:fails", {}, "RuntimeError: no licence"),
        ("worlds_to_test.model", {}, "'worlds_to_test.model'. Did you mean 'worlds_to_test:model'?"),
        ("worlds_to_test.py:model", {}, "Did you mean 'worlds_to_test:model'?"),
        ("nowhere_at_all.py:model", {}, "no module 'nowhere_at_all"),
        ("os:getcwd", {}, "os:getcwd returned '/"),
        ("os:getcwd", {}, "which is no environment. Name a function that returns a gymnasium.Env"),
        ("nowhere.at.all", {}, "There is no environment 'nowhere.at.all'"),
        (
            "two words",
            {},
            "FrozenLake-v1, module:function, module:Id of one that the module registers, or one of",
        ),
    ],
)
def test_what_cannot_be_made_is_said_with_the_nearest(module, name, arguments, match):
    with pytest.raises(EnvError) as caught:
        make(name, arguments)
    assert match in str(caught.value)


@pytest.fixture(params=[False, True], ids=["plain", "hooked"])
def hooked_exit(request, monkeypatch):
    """Let a library have put a function of its own in the place of `sys.exit`, or not."""
    plain = sys.exit

    def hook(code=None):
        plain(code)

    if request.param:
        monkeypatch.setattr(sys, "exit", hook)


@pytest.mark.parametrize("where", ["f", "<module>"])
def test_sys_exit_where_an_environment_is_made_is_named_with_its_place(module, tmp_path, hooked_exit, where):
    text = "def f():\n    sys.exit(7)\n" + ("f()\n" if where == "<module>" else "")
    (tmp_path / "worlds_to_test.py").write_text(f"import sys\n{text}")
    said = r"calls sys\.exit\(7\) in f, .*worlds_to_test\.py:3, and makes no environment"
    with pytest.raises(EnvError, match=said):
        make("worlds_to_test:f")


def test_a_training_that_is_stopped_where_an_environment_is_made_ends_as_ever(module, tmp_path):
    stop = "from dist_classicrl.errors import TrainingStopped\nraise TrainingStopped(75, 'a test', None, 1)\n"
    (tmp_path / "worlds_to_test.py").write_text(stop)
    with pytest.raises(TrainingStopped):
        make("worlds_to_test:f")


def test_a_signals_handler_may_end_the_program_where_an_environment_is_made(module, tmp_path):
    (tmp_path / "worlds_to_test.py").write_text("import signal\nsignal.raise_signal(signal.SIGUSR1)\n")
    before = signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(143))
    try:
        with pytest.raises(SystemExit) as caught:
            make("worlds_to_test:f")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value.code == 143


@pytest.mark.parametrize(("said", "code"), [("75", 1), ("", 1), ("0", 1), ("3", 3)])
def test_sys_exit_in_a_step_says_neither_that_the_work_is_done_nor_that_it_goes_on(
    module, tmp_path, capsys, hooked_exit, said, code
):
    (tmp_path / "worlds_to_test.py").write_text(
        "import sys, gymnasium\n"
        "class Ending(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        f"        sys.exit({said})\n"
        "def f():\n"
        "    return Ending(gymnasium.make('FrozenLake-v1'))\n"
    )
    with pytest.raises(SystemExit) as caught:
        main(["train", "worlds_to_test:f", "--total-steps", "100", "--out", str(tmp_path / "run")])
    assert caught.value.code == code
    place = f"was called in step, {tmp_path / 'worlds_to_test.py'}:4, while this process"
    told = capsys.readouterr().err
    # One that wandb has put there says 0 where nothing was said.
    assert any(f"Error: sys.exit({each}) {place}" in told for each in (said, said or "0"))


def test_a_module_that_needs_another_one_is_not_said_to_be_missing(module, tmp_path):
    (tmp_path / "worlds_to_test.py").write_text("import absent_from_everywhere")
    with pytest.raises(ModuleNotFoundError, match="absent_from_everywhere"):
        make("worlds_to_test:f")
