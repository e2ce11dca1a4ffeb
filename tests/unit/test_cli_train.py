import errno
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TransformReward

from dist_classicrl import DistAsyncQLearning, TrainingResult
from dist_classicrl.callbacks.base import BaseCallback
from dist_classicrl.checkpoint.manifest import MANIFEST
from dist_classicrl.cli import start, training
from dist_classicrl.cli.commands.train import command as train_command
from dist_classicrl.cli.main import main
from dist_classicrl.cli.requested_run import gather
from dist_classicrl.cli.run_folder import RunFolder, short_path, steps_saved
from dist_classicrl.cli.signals import Ended, ended_after
from dist_classicrl.cli.synonyms import SYNONYMS, own_word
from dist_classicrl.cli.trained_agent import load
from dist_classicrl.errors import CheckpointError, LauncherError, SettingsError, TrainingStopped
from dist_classicrl.launch import plan
from dist_classicrl.model import places
from dist_classicrl.monitoring import read_metrics
from dist_classicrl.schedules import Linear, PerVisit

LAKE_RUN = "runs/FrozenLake-v1"
LAKE = ("FrozenLake-v1", "--total-steps", "2e4", "--eval-episodes", "5")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*words):
    places._agents.clear()  # as in a process of its own, each time
    return main(["train", *map(str, words)])


@pytest.fixture
def no_training(monkeypatch):
    """The command is to end before it trains."""

    def fail(*anything):
        raise AssertionError("it trained")

    monkeypatch.setattr(start, "train_here", fail)
    monkeypatch.setattr(start, "_start_ranks", fail)


def begun(*asked):
    """Return the job of a run that has begun, and has a record."""
    job = gather(*asked)
    job.prepare()
    job.save()
    job.folder.metrics.write_text("{}\n")
    return job


def steps_of(folder):
    return json.loads((folder / "result.json").read_text())["steps"]


OF_JOBS = {
    "SLURM_NTASKS": "100",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "PBS_NODEFILE": "/var/spool/pbs/aux/7.head",
    "LSB_HOSTS": "node1 node1 node2",
    "LSB_MCPU_HOSTS": "node1 40 node2 40",
    "LSB_DJOB_HOSTFILE": "/home/ada/.lsbatch/7.hostfile",
    "PE_HOSTFILE": "/var/spool/sge/node1/active_jobs/7.1/pe_hostfile",
}


@pytest.fixture
def two_cores(monkeypatch):
    """Nothing is started, on a host of two cores outside of any batch system."""
    monkeypatch.setattr(plan, "usable_cores", lambda: 2)
    for name in (*OF_JOBS, "SLURM_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(start.Supervisor, "run", lambda supervisor: 0)


@pytest.mark.usefixtures("two_cores")
def test_more_ranks_than_cores_are_advised_against(place, capsys):
    assert train(*LAKE, "--ranks", 100) == 0
    said = capsys.readouterr().err
    assert said.startswith("Hint: 100 ranks share 2 cores: they are not faster than 3,")
    assert said.count("\n") == 1 and "Write --ranks 3, unless" in said
    (place / "hosts").write_text("localhost slots=100\n")
    for fits in (["--ranks", 3], ["--ranks", 100, "--hostfile", "hosts"]):
        assert train(*LAKE, *fits) == 0 and "share" not in capsys.readouterr().err
    assert train(*LAKE, "--ranks", 100, "--quiet") == 0 and capsys.readouterr().err == ""


@pytest.mark.parametrize("name", OF_JOBS)
@pytest.mark.usefixtures("place", "two_cores")
def test_cores_of_a_host_say_nothing_where_a_batch_system_gives_hosts(capsys, monkeypatch, name):
    monkeypatch.setenv(name, OF_JOBS[name])
    assert train(*LAKE, "--ranks", 100) == 0 and "share" not in capsys.readouterr().err


# A run from its beginning to its end


def test_a_run_leaves_all_its_files_and_says_where(place, capsys):
    assert train(*LAKE, "--seed", 3) == 0
    folder = place / "runs" / "FrozenLake-v1"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("config.toml", "metrics.jsonl", "metrics.csv", "checkpoints", "model.npz", "result.json", "logs")
    }
    assert steps_of(folder) == 20_000
    said = capsys.readouterr().out
    assert "steps=20000 total_steps=20000 " in said
    assert "20,000 steps in" in said and "greedy return" in said and "runs/FrozenLake-v1" in said
    assert "steps=20000" in (folder / "logs" / "rank-0.log").read_text()
    assert read_metrics(folder)["step"][-1] == 20_000


def test_a_quiet_run_says_nothing(capsys):
    assert train(*LAKE, "-q") == 0
    assert capsys.readouterr() == ("", "")


def test_typed_again_it_is_done_and_with_more_steps_it_goes_on(place, capsys, monkeypatch):
    train(*LAKE, "--seed", 3)
    folder = place / "runs" / "FrozenLake-v1"
    before = (folder / "model.npz").read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(start, "train_here", None)
        assert train(*LAKE) == 0  # the seed is that of the run
        assert train(*LAKE, "--total-steps", "1e4") == 0
    assert "is done. With more --total-steps than 20,000 it goes on" in capsys.readouterr().out
    assert (folder / "model.npz").read_bytes() == before
    assert train(*LAKE, "--total-steps", 30_001) == 0
    assert steps_of(folder) == 30_001
    assert "resumed from" in capsys.readouterr().out
    steps = list(read_metrics(folder)["step"])
    assert steps[:200] == list(range(100, 20_001, 100))
    assert steps[200:] == [math.ceil(point * 30_001 / 200) for point in range(134, 201)]


def test_the_same_run_from_its_config_file_learns_the_same(place):
    words = ("--learning-rate", "per_visit:0.7", "--epsilon", "linear:1:0.1:1e4", "--dtype", "float32")
    words += ("--no-async-updates", "--logical-workers", "2")  # the reproducible mode
    assert train(*LAKE, *words, "--env-arg", "map_name=8x8") == 0
    assert train("--config", "runs/FrozenLake-v1/config.toml", "--out", "runs/again") == 0
    first, again = (load(place / "runs" / name) for name in ("FrozenLake-v1", "again"))
    assert first.agent.settings == again.agent.settings
    assert first.agent.settings.learning_rate == PerVisit(0.7)
    assert first.agent.settings.epsilon == Linear(1.0, 0.1, 10_000)
    assert first.env_arguments == again.env_arguments == {"map_name": "8x8"}
    np.testing.assert_array_equal(first.agent.q_table, again.agent.q_table)
    np.testing.assert_array_equal(first.agent.visits, again.agent.visits)
    assert first.agent.visits.shape == (64, 4)


def test_evaluations_and_early_stopping_are_asked_for_by_options(place):
    words = ("--total-steps", "1e12", "--progress-interval", "0.02", "--epsilon", "0.1")
    assert train(*LAKE, *words, "--eval-every", "1e3", "--stop-at-return", "0.3") == 0
    folder = place / "runs" / "FrozenLake-v1"
    assert 10**3 < steps_of(folder) < 10**11
    assert (folder / "best_model.npz").exists() and (folder / "evaluations.npz").exists()


def test_tensorboard_is_asked_for_by_an_option(place):
    pytest.importorskip("tensorboard")
    assert train(*LAKE, "--tensorboard") == 0
    assert list((place / "runs" / "FrozenLake-v1" / "tensorboard").glob("events.*"))


def test_a_time_limit_stops_it_with_status_75_and_the_same_command_goes_on(place, capsys):
    words = ("FrozenLake-v1", "--total-steps", "1e12", "--time-limit", "300ms", "--out", "stopped")
    with pytest.raises(SystemExit) as caught:
        train(*words)
    assert isinstance(caught.value, TrainingStopped) and caught.value.code == 75
    loaded = load("stopped")
    assert loaded.agent.steps == caught.value.steps > 0
    assert not (place / "stopped" / "result.json").exists()
    with pytest.raises(TrainingStopped) as again:
        train(*words)
    assert again.value.steps > caught.value.steps


def test_the_result_has_what_the_greedy_policy_is_worth_in_the_end(place, capsys):
    assert train(*LAKE, "-q") == 0
    folder = RunFolder(place / "runs" / "FrozenLake-v1")
    result = folder.read_result()
    greedy = result.pop("greedy")
    assert TrainingResult.from_dict(result).steps == 20_000
    assert (greedy["episodes"], set(greedy)) == (5, {*GREEDY})
    assert train(*LAKE) == 0
    assert f"greedy return  {greedy['mean_return']:.4g} (" in capsys.readouterr().out
    folder.write_result(result)  # as one of an earlier version, or whose evaluation took too long
    assert train(*LAKE) == 0
    assert re.search("greedy return +not known; see `.* evaluate runs/", capsys.readouterr().out)


GREEDY = ("mean_return", "std_return", "mean_length", "episodes", "hint")


def test_what_to_type_next_can_be_typed_in_a_shell(place, capsys, monkeypatch):
    assert train(*LAKE, "--out", "my runs/it's") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next ")]
    show, plot = (shlex.split(words)[-2:] for words in line.removeprefix("next ").split(";"))
    assert (show, plot) == (["show", "my runs/it's"], ["plot", "my runs/it's"])
    for found, expected in ((None, [sys.executable, "-m", "dist_classicrl"]), ("/x", ["dist-classicrl"])):
        monkeypatch.setattr("shutil.which", lambda name, found=found: found)
        assert train(*LAKE, "--out", "my runs/it's") == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next ")]
        assert shlex.split(line.split(";")[0])[1:-2] == expected


def test_words_that_are_usual_elsewhere_are_understood(place):
    words = ("--env", "FrozenLake-v1", "--lr=0.5", "--gamma", "0.9", "--timesteps", "2e4", "--output", "x")
    assert train(*words, "-q", "--eps", "0.2") == 0
    settings = RunFolder(place / "x").read_config()
    assert (settings["environment"], settings["total_steps"]) == ("FrozenLake-v1", 20_000)
    assert (settings["learning_rate"], settings["discount_factor"], settings["epsilon"]) == (0.5, 0.9, 0.2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--total-steps", "2000", "--steps", "1000"), "--total-steps and --steps"),
        (("--gamma=0.9", "--discount-factor", "0.5"), "--gamma and --discount-factor"),
        (("--lr", "0.1", "--learning-rate=0.1"), "--lr and --learning-rate"),
        (("--env", "FrozenLake-v1", "--environment", "Taxi-v4"), "--env and --environment"),
    ],
)
def test_an_option_by_two_of_its_names_is_refused(words, told, place, capsys):
    assert train("FrozenLake-v1", *words) == 2
    assert f"{told} are the same: give one of them." in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_of_an_option_that_is_given_twice_the_last_counts(place):
    words = ("--steps", "5", "--steps", "300", "--lr=0.9", "--lr=0.5")
    assert train("FrozenLake-v1", *words, "--out", "x", "-q") == 0
    settings = RunFolder(place / "x").read_config()
    assert (settings["learning_rate"], settings["total_steps"]) == (0.5, 300)


@pytest.mark.parametrize("word, own", SYNONYMS.items())
def test_each_synonym_means_an_option_and_a_key_says_what_it_is_called(word, own, place, capsys):
    options = {option for param in train_command.params for option in param.opts}
    assert f"--{own.replace('_', '-')}" in options and f"--{word.replace('_', '-')}" not in options
    assert own_word(word.replace("_", "-")) == own.replace("_", "-")
    (place / "x.toml").write_text(f"{word} = 1\n")
    assert train("--config", "x.toml") == 2
    said = capsys.readouterr().err
    assert f"{word} is called {own} here" in said or f"there is no setting '{word}'" in said


def test_a_policy_that_meets_nothing_gets_a_hint(place, capsys):
    # In one step nothing is learned but the value of a hole.
    assert train(*LAKE, "--total-steps", "1", "--env-arg", "desc=['SH', 'HH']") == 0
    hint = RunFolder(place / LAKE_RUN).read_result()["greedy"]["hint"]
    assert "every return is 0, so" in hint and f"hint           {hint}" in capsys.readouterr().out


# A run that never begins


WORLDS = """
import gymnasium
from dist_classicrl import CompiledSimulator, TabularMDP

class NotFinite(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0)
    action_space = gymnasium.spaces.Discrete(2)

game = CompiledSimulator.from_model(TabularMDP.garnet(6, 2, 2, seed=0))
"""


@pytest.fixture
def worlds(place, monkeypatch):
    (place / "worlds_to_train_in.py").write_text(WORLDS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "worlds_to_train_in"
    sys.modules.pop("worlds_to_train_in", None)


@pytest.mark.parametrize("out", [(), ("--out", "deep/er")])
def test_a_run_that_never_begins_leaves_nothing_behind(worlds, place, capsys, out):
    before = {path.name for path in place.iterdir()}
    assert train(f"{worlds}:NotFinite", *out) == 2
    assert "is not finite" in capsys.readouterr().err
    assert {path.name for path in place.iterdir()} - {"__pycache__"} == before
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text("kept")
    assert train(f"{worlds}:NotFinite", "--out", "mine") == 2
    assert [path.name for path in (place / "mine").iterdir()] == ["notes.txt"]


def test_a_run_that_never_begins_gives_its_place_back(worlds, place):
    assert train(*LAKE, "-q") == 0
    before = sorted(path.name for path in (place / LAKE_RUN).iterdir())
    assert train(f"{worlds}:NotFinite", "--out", LAKE_RUN, "--resume", "never") == 2
    assert sorted(path.name for path in (place / LAKE_RUN).iterdir()) == before
    assert [path.name for path in (place / "runs").iterdir()] == ["FrozenLake-v1"]


def test_logs_stay_where_a_defect_ended_a_run_that_never_began(monkeypatch, place):
    def fail(run, display):
        (run.folder.checkpoints / "agent-0").mkdir(parents=True)
        (run.folder.checkpoints / "agent-0" / "fence-000001.json").write_text("{}")
        run.folder.logs.mkdir()
        (run.folder.logs / "rank-0.log").write_text("what happened")
        raise failure

    monkeypatch.setattr(start, "train_here", fail)
    failure = RuntimeError("a defect")
    assert train(*LAKE) == 70
    assert [str(path.relative_to(place)) for path in place.rglob("*.*") if path.is_file()] == [
        f"{LAKE_RUN}/logs/rank-0.log"
    ]
    shutil.rmtree(place / "runs")
    failure = SettingsError("a mistake")
    assert train(*LAKE) == 2
    assert not (place / "runs").exists()


def test_a_module_may_name_a_simulator(worlds, place):
    assert train(f"{worlds}:game", "--total-steps", "1e4", "--out", "game", "-q") == 0
    assert load("game").agent.q_table.shape == (6, 2)
    assert load("game").make_env() is sys.modules[worlds].game


# What is refused, before anything is trained


@pytest.mark.parametrize(
    "words, match",
    [
        (["--learning-rate", "0.5"], "another learning_rate: it is 'per_visit:0.7:0.5:100.0' there"),
        (["--seed", "4"], "another seed: it is 3 there, and 4 now"),
        (["--env-arg", "map_name=8x8"], "another map_name of the environment: it is left out there"),
        (["--no-async-updates"], "another async_updates"),
        (["--walkers", "64"], "another walkers: it is left out there, and 64 now"),
    ],
)
def test_another_experiment_is_not_mixed_into_a_run(words, match, capsys, no_training, place):
    job = begun("FrozenLake-v1", (), {"seed": 3}, None, None)
    before = job.folder.config.read_text()
    assert train("FrozenLake-v1", *words) == 2
    said = capsys.readouterr().err
    assert match in said
    assert "--out runs/FrozenLake-v1-2 " in said and "--resume never" in said
    assert job.folder.config.read_text() == before


def test_walkers_are_a_power_of_two_and_partitions_have_names(capsys, no_training):
    assert train(*LAKE, "--placement", "sharded", "--no-async-updates", "--walkers", "100") == 2
    assert "power of two" in (said := capsys.readouterr().err) and "walkers=64" in said
    assert train(*LAKE, "--partition", "even") == 2
    assert "one of hash, range" in capsys.readouterr().err


def test_walkers_without_rows_that_have_one_owner_are_refused(place, capsys):
    assert train(*LAKE, "--walkers", "64") == 2
    assert "walkers=64 is for tables whose rows are divided among the ranks" in capsys.readouterr().err
    assert not (place / "runs").exists()


@pytest.mark.slow
def test_rows_with_one_owner_are_learned_whoever_owns_which(place):
    words = ("--placement", "sharded", "--no-async-updates", "--seed", "3", "--walkers", "64", "-q")
    tables = []
    for more in ([], ["--partition", "range"], ["--walkers", "4"]):
        out = f"run{len(tables)}"
        assert train(*LAKE, *words, *more, "--out", out) == 0
        tables.append(load(out).agent.q_table)
    np.testing.assert_array_equal(tables[0], tables[1])
    assert (tables[0] != tables[2]).any()
    assert train(*LAKE, *words, "--out", "run0", "--total-steps", "3e4") == 0
    assert steps_of(place / "run0") == 30_000


def test_another_environment_is_not_mixed_into_a_run(capsys, no_training):
    begun("FrozenLake-v1", (), {}, None, None)
    assert train("Taxi-v4", "--out", "runs/FrozenLake-v1") == 2
    assert "another environment: it is 'FrozenLake-v1' there, and 'Taxi-v4' now" in capsys.readouterr().err


def test_what_does_not_change_the_experiment_may_change(place):
    train(*LAKE)
    words = ("--total-steps", "3e4", "--timeout", "60", "--keep-last", "1", "--checkpoint-interval", "1e4")
    assert train(*LAKE, *words, "--sync-frequency", "5") == 0
    assert steps_of(place / "runs" / "FrozenLake-v1") == 30_000


def test_a_run_begun_anew_keeps_the_one_before_under_another_name(place, capsys):
    train(*LAKE)
    kept = (place / "runs" / "FrozenLake-v1" / "model.npz").read_bytes()
    for name in ("FrozenLake-v1-before", "FrozenLake-v1-before-2"):
        assert train(*LAKE, "--resume", "never", "--learning-rate", "0.5") == 0
        assert f"is now in runs/{name}." in capsys.readouterr().err
    assert (place / "runs" / "FrozenLake-v1-before" / "model.npz").read_bytes() == kept
    assert 'resume = "auto"' in (place / "runs" / "FrozenLake-v1" / "config.toml").read_text()


@pytest.mark.parametrize(
    "words, match",
    [
        ([], "Which environment?"),
        (["FrozenLake-v9"], "Did you mean 'FrozenLake-v1'?"),
        (["FrozenLake-v1", "--environment", "Taxi-v4"], "give one of them"),
        (["FrozenLake-v1", "--learning-rate", "2"], "learning_rate must be above 0 and at most 1"),
        (["FrozenLake-v1", "--keep-last", "0"], "at least 1"),
        (["FrozenLake-v1", "--total-steps", "1e19"], "It is too large: the most is 4611686018427387903."),
        (["FrozenLake-v1", "--stop-at-return=-inf"], "is not a number"),
        (["FrozenLake-v1", "--log-dir", os.devnull], "--log-dir /dev/null is no folder"),
        (["FrozenLake-v1", "--stop-signals", "SIGKILL"], "no program can catch it"),
        (["FrozenLake-v1", "--heartbeat-timeout", "1"], "4 times heartbeat_interval"),
        (["FrozenLake-v1", "--config", "absent.toml"], "No such file"),
        (["FrozenLake-v1", "--ranks", "0"], "at least 1"),
        (["FrozenLake-v1", "--checkpoint-dir", "c\udcff"], "\\udcff', which is not UTF-8"),
        (["FrozenLake-v1", "--log-dir", "l\udcff"], "log_dir is '"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_no_folder(words, match, capsys, place):
    assert train(*words) == 2
    assert match in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_a_package_that_ranks_lack_is_named_before_anything_is_started(
    place, no_training, monkeypatch, capsys
):
    monkeypatch.setattr("dist_classicrl.settings.find_spec", lambda name: None)
    assert train(*LAKE, "--compression", "lossless", "--ranks", "2") == 2
    assert "needs zstandard" in capsys.readouterr().err and list(place.iterdir()) == []


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_to_is_said_to_be(out, place, capsys):
    (place / "file").touch()
    assert train(*LAKE, "--out", out) == 2
    assert f"cannot be kept in {out} (" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, match",
    [
        ('enviroment = "Taxi-v4"', "no setting 'enviroment'. Did you mean 'environment'?"),
        (
            "total_steps = 'many'",
            "total_steps must be a whole number of at least 1, got 'many', which is a text",
        ),
        ("total_steps = '1e6'", "Leave out the quotes."),
        ("async_updates = 1", "async_updates must be true or false, got 1, which is a whole number"),
        ("learning_rate = [1]", "learning_rate must be a number, or a schedule"),
        ("environment_arguments = 3", "environment_arguments must be a table"),
        ("total_steps = ", "is no TOML"),
        ("[agent]\nseed = 1", "no setting 'agent'"),
    ],
)
def test_a_file_that_is_wrong_is_said_to_be(text, match, place, capsys):
    (place / "a.toml").write_text(text)
    assert train("FrozenLake-v1", "-c", "a.toml") == 2
    assert match in capsys.readouterr().err
    assert "a.toml" in str(list(place.iterdir())) and not (place / "runs").exists()


def test_options_win_over_the_file_and_the_file_over_defaults(place):
    (place / "a.toml").write_text(
        'environment = "FrozenLake-v1"\nseed = 5\ndtype = "float32"\nranks = 7\n'
        'epsilon = { kind = "linear", initial = 1, final = 0.1, steps = 1e3 }\n'
        "[environment_arguments]\nis_slippery = true\nmap_name = '4x4'\n"
    )
    job = gather(None, ["map_name=8x8"], {"seed": 6, "dtype": None, "ranks": None}, place / "a.toml", None)
    assert (job.settings["seed"], job.settings["dtype"], job.ranks) == (6, "float32", 7)
    assert job.settings["epsilon"] == Linear(1.0, 0.1, 1_000)
    assert job.settings["batch_size"] == 32
    assert job.environment_arguments == {"is_slippery": True, "map_name": "8x8"}
    assert gather("Taxi-v4", (), {"ranks": 2}, place / "a.toml", None).environment_arguments == {}


# What a run may be after it has been stopped, has failed or has ended


def test_a_run_without_a_seed_of_its_own_goes_on_with_that_of_its_checkpoint(place, monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "0")  # ranks do not draw one for the settings
    assert train(*LAKE) == 0
    monkeypatch.delenv("PMIX_RANK")
    folder = place / "runs" / "FrozenLake-v1"
    config = (folder / "config.toml").read_text()
    assert "\nseed = " in config
    assert train(*LAKE, "--total-steps", "3e4") == 0
    assert steps_of(folder) == 30_000
    kept = [line for line in config.splitlines() if not line.startswith("seed")]
    (folder / "config.toml").write_text("\n".join(kept))
    assert train(*LAKE, "--total-steps", "4e4") == 0
    assert steps_of(folder) == 40_000


def test_what_a_run_has_learned_stays_until_it_really_goes_on(place, capsys):
    assert train(*LAKE) == 0
    folder = place / "runs" / "FrozenLake-v1"
    before = {path: path.read_bytes() for path in folder.glob("*.*") if path.is_file()}
    (place / "afile").touch()
    assert train(*LAKE, "--total-steps", "3e4", "--checkpoint-dir", "afile") == 2
    assert "afile" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.glob("*.*") if path.is_file()} == before


@pytest.mark.slow
def test_a_command_that_failed_at_once_binds_nobody(place, capsys):
    (place / "afile").touch()
    assert train(*LAKE, "--checkpoint-dir", "afile") == 2
    assert train(*LAKE, "--learning-rate", "0.5") == 0
    capsys.readouterr()
    job = gather("Taxi-v4", (), {"seed": 3}, None, None)
    job.prepare()
    job.save()  # it began, and was killed before it had made a step
    assert train("Taxi-v4", "--total-steps", 100, "--eval-episodes", 1, "--seed", 4) == 0


def test_a_checkpoint_of_step_0_is_one(place):
    folder = RunFolder(place / "x")
    checkpoint = folder.checkpoints / "agent-0" / f"f000001-c00000001-step{0:015d}-0123abcd"
    checkpoint.mkdir(parents=True)
    assert steps_saved(folder.checkpoints) is None and not folder.has_record()
    (checkpoint / MANIFEST).touch()
    assert steps_saved(folder.checkpoints) == 0 and folder.has_record()


def test_a_run_with_checkpoints_elsewhere_is_shown_and_begun_anew(monkeypatch, place, capsys):
    words = ("FrozenLake-v1", "--time-limit", "300ms", "--checkpoint-dir", "ck")
    with pytest.raises(TrainingStopped) as stopped:
        train(*words, "--total-steps", "1e12")
    assert load("runs/FrozenLake-v1").agent.steps == stopped.value.steps
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir("runs")
        assert load("FrozenLake-v1").agent.steps == stopped.value.steps
    capsys.readouterr()
    words = (*LAKE, "--learning-rate", "0.5")
    assert train(*words, "--resume", "never", "--checkpoint-dir", "ck") == 2  # it would go on with those
    made = f"There are checkpoints of another run in ck already, at {stopped.value.steps:,} steps"
    assert made in capsys.readouterr().err and not (place / "runs" / "FrozenLake-v1-before").exists()
    words = (*words, "--checkpoint-dir", "ck-2")
    assert train(*words, "--resume", "never") == 0
    assert "is now in runs/FrozenLake-v1-before" in capsys.readouterr().err
    assert steps_of(place / "runs" / "FrozenLake-v1") == 20_000
    assert train(*words, "--total-steps", "3e4") == 0  # and that one goes on
    assert steps_of(place / "runs" / "FrozenLake-v1") == 30_000


def test_only_the_first_start_of_a_job_begins_anew(monkeypatch, place):
    called = []
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setattr(start, "train_here", lambda job, display: called.append(job.settings["resume"]))
    job = gather("FrozenLake-v1", (), {"resume": "never"}, None, place / "x")
    job.prepare()
    job.write_for_ranks()
    words = ("--started", "--config", str(job.folder.for_ranks), "--out", "x")
    assert train(*words) == 0
    job.save()
    assert train(*words) == 0
    assert called == ["never", "auto"]


def test_fewer_steps_than_a_stopped_run_has_made_are_refused(place, capsys):
    with pytest.raises(TrainingStopped) as stopped:
        train("FrozenLake-v1", "--total-steps", "1e12", "--time-limit", "300ms")
    assert train("FrozenLake-v1", "--total-steps", 5) == 2
    assert f"has made {stopped.value.steps:,} steps, more than --total-steps 5" in capsys.readouterr().err
    assert not (place / "runs" / "FrozenLake-v1" / "result.json").exists()


def test_a_run_that_ended_early_goes_on_to_another_number_of_steps(place, capsys):
    early = ("--total-steps", "1e12", "--progress-interval", "0.02", "--stop-at-return", "0.001")
    assert train(*LAKE, *early) == 0
    folder = place / "runs" / "FrozenLake-v1"
    made = steps_of(folder)
    capsys.readouterr()
    assert train(*LAKE, *early) == 0
    assert f"more --total-steps than {made:,} it goes on, unless they are 1,000,000,000,000 again" in (
        capsys.readouterr().out
    )
    assert train(*LAKE, "--total-steps", made + 1000) == 0
    assert steps_of(folder) == made + 1000


@pytest.mark.parametrize(
    "before, after, why",
    [
        (["--total-episodes", 20], ["--total-episodes", 60], "all --total-episodes 20 have ended"),
        (["--total-episodes", 20, "--stop-at-return", 0.99], [], "all --total-episodes 20 have ended"),
        (["--stop-at-return", 0.001], ["--stop-at-return", 2], "has reached --stop-at-return 0.001"),
    ],
)
def test_a_run_that_ended_early_says_why_and_goes_on_to_another_end(before, after, why, place, capsys):
    words = (*LAKE, "--progress-interval", "0.02")
    assert train(*words, *before) == 0
    made = steps_of(place / LAKE_RUN)
    assert why in capsys.readouterr().out
    assert train(*words, *before) == 0
    assert "is done" in capsys.readouterr().out
    assert train(*words, *after) == 2
    assert "it goes on to another number of steps alone. Add for instance --total-steps 20001." in (
        capsys.readouterr().err
    )
    assert train(*words, *after, "--total-steps", 20_001) == 0
    assert "resumed from" in capsys.readouterr().out and steps_of(place / LAKE_RUN) > made


@pytest.mark.parametrize(
    "more", [["--total-steps", "4e4"], ["--total-steps", "4e4", "--checkpoint-dir", "b"]]
)
def test_a_run_whose_checkpoints_are_not_found_is_not_begun_again(more, place, capsys):
    assert train(*LAKE, "--checkpoint-dir", "a") == 0
    model = place / LAKE_RUN / "model.npz"
    before = model.read_bytes()
    capsys.readouterr()
    for lost in (lambda: None, lambda: shutil.rmtree("a"), (place / LAKE_RUN / "result.json").unlink):
        lost()
        assert train(*LAKE, *more) == 2
        said = capsys.readouterr().err
        assert (
            f"saved in {place / 'a'}" in said and "Give --checkpoint-dir as before, or --resume never" in said
        )
    assert model.read_bytes() == before
    assert train(*LAKE, *more, "--resume", "never") == 0
    assert steps_of(place / LAKE_RUN) == 40_000


@pytest.fixture
def longer(place, capsys):
    """The folder of a run that has ended at 40,000 steps, with checkpoints of 20,000 and of those."""
    for steps in (20_000, 40_000):
        assert train(*LAKE, "--total-steps", steps) == 0
    capsys.readouterr()
    return RunFolder(place / LAKE_RUN)


def newest_of(checkpoints):
    return max((checkpoints / "agent-0").glob("f*-c*"))


@pytest.mark.parametrize("has_result", [True, False])
def test_a_run_does_not_go_on_from_less_than_its_model_has(longer, has_result, capsys):
    shutil.rmtree(newest_of(longer.checkpoints))  # as where the disk had room for the model alone
    before = longer.model.read_bytes()
    why = f"the newest checkpoint in {short_path(longer.checkpoints)} that can be used has 20,000: only"
    assert train(*LAKE, "--total-steps", "4e4") == 0
    assert f"done. It cannot go on: it has made 40,000 steps, and {why}" in capsys.readouterr().out
    if not has_result:
        longer.result.unlink()
    assert train(*LAKE, "--total-steps", "6e4") == 2
    told = capsys.readouterr().err
    assert f"has made 40,000 steps, and {why}" in told
    assert "To go on from 20,000 steps, move model.npz to another folder first." in told
    assert longer.model.read_bytes() == before and longer.result.exists() == has_result
    longer.model.rename("kept.npz")
    assert train(*LAKE, "--total-steps", "6e4") == 0
    assert steps_of(longer.path) == 60_000 and "step000000000020000" in capsys.readouterr().out


def test_a_run_whose_newest_checkpoint_is_damaged_does_not_lose_its_model(longer, capsys):
    os.truncate(newest_of(longer.checkpoints) / "q_table.npy", 100)
    before = longer.model.read_bytes()
    assert train(*LAKE, "--total-steps", "6e4") == 2
    assert "has made 40,000 steps, and the newest checkpoint in" in capsys.readouterr().err
    assert longer.model.read_bytes() == before and steps_of(longer.path) == 40_000


def test_a_run_without_a_checkpoint_says_that_it_cannot_go_on(longer, capsys):
    shutil.rmtree(longer.checkpoints)
    why = f"no checkpoint in {short_path(longer.checkpoints)} to go on from: only {LAKE_RUN}/model.npz has"
    assert train(*LAKE, "--total-steps", "4e4") == 0
    told = capsys.readouterr().out
    assert why in told and "it goes on" not in told
    assert train(*LAKE, "--total-steps", "6e4") == 2
    told = capsys.readouterr().err
    assert why in told and f"load_model('{LAKE_RUN}/model.npz') trains on." in told
    assert DistAsyncQLearning.load_model(longer.model).steps == 40_000


def test_checkpoints_in_a_folder_that_is_named_from_here_are_where_they_were(place, capsys):
    words = (*LAKE, "--checkpoint-dir", "saved")
    assert train(*words, "--total-steps", "2e4") == train(*words, "--total-steps", "4e4") == 0
    shutil.rmtree(newest_of(place / "saved"))
    assert train(*words, "--total-steps", "6e4") == 2
    told = capsys.readouterr().err
    assert (
        "has made 40,000 steps, and the newest checkpoint in saved that can be used has 20,000: only" in told
    )
    assert "as before" not in told and "Give --resume never and another --checkpoint-dir to begin" in told
    assert train(*words[:-1], "another", "--total-steps", "6e4", "--resume", "never") == 0


def test_a_model_that_was_saved_without_a_run_stays_where_it_is(place, no_training, capsys):
    model = place / "own" / "model.npz"
    model.parent.mkdir()
    agent = DistAsyncQLearning(seed=1)
    agent.train("FrozenLake-v1", total_steps=1000)
    agent.save_model(model)
    for more in ([], ["--resume", "never"]):
        assert train("FrozenLake-v1", "--out", "own", "--total-steps", "2000", *more) == 2
        told = capsys.readouterr().err
        assert "own has made 1,000 steps, and there is no checkpoint in own/checkpoints" in told
        assert told.rstrip().endswith("Give --out another folder, or move model.npz to another folder first.")
    assert [path.name for path in model.parent.iterdir()] == ["model.npz"]


def test_a_damaged_model_beside_checkpoints_is_to_be_moved_away(longer, capsys):
    longer.result.unlink()
    os.truncate(longer.model, 100)
    assert train(*LAKE, "--total-steps", "6e4") == 2
    told = capsys.readouterr().err
    assert "model.npz, which cannot be read and may have learned more: move model.npz to another" in told
    longer.model.unlink()
    assert train(*LAKE, "--total-steps", "6e4") == 0 and steps_of(longer.path) == 60_000


def test_a_run_that_is_done_needs_no_store_that_answers(longer, monkeypatch, capsys):
    def refuse(place):
        raise CheckpointError("The store does not answer.")

    monkeypatch.setattr(start, "steps_saved", refuse)
    assert train(*LAKE, "--total-steps", "4e4") == 0
    assert "is done. With more --total-steps than 40,000 it goes on." in capsys.readouterr().out


def test_a_stopped_run_whose_checkpoints_are_not_found_says_how_far_it_was(place, capsys):
    with pytest.raises(TrainingStopped) as stopped:
        train("FrozenLake-v1", "--total-steps", "1e12", "--time-limit", "300ms", "--checkpoint-dir", "a")
    assert train("FrozenLake-v1", "--total-steps", "1e12") == 2
    assert f"has made {stopped.value.steps:,} steps and saved in " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["Taxi-v4", "--out", "lake"], ["--config", "lake/config.toml", "--out", "lake"]]
)
def test_a_file_of_somebody_else_is_not_taken_for_a_run(words, place, no_training, capsys):
    file = place / "lake" / "config.toml"
    file.parent.mkdir()
    file.write_text('environment = "FrozenLake-v1"\n')
    for more in ([], ["--resume", "never"]):
        assert train(*words, *more) == 2
        assert "lake/config.toml was not written by" in capsys.readouterr().err
    assert [path.name for path in place.iterdir()] == ["lake"] and file.read_text().startswith("environment")


@pytest.mark.parametrize("out", ["", "s3://bucket/run"])
def test_a_run_needs_a_folder_of_its_own(out, place, no_training, capsys):
    assert train(*LAKE, "--out", out) == 2
    assert f"{out!r} is not the path of a folder" in capsys.readouterr().err
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("out, here", [(".", "x"), ("..", "x/y")])
def test_the_current_folder_may_hold_a_run_but_gets_no_other_name(out, here, place, monkeypatch, capsys):
    (place / "x" / "y").mkdir(parents=True)
    monkeypatch.chdir(here)
    assert train(*LAKE, "--seed", 3, "--out", out) == 0
    assert train(*LAKE, "--seed", 4, "--out", out) == 2
    assert f"--out {place / 'x-2'} for a run of its own" in capsys.readouterr().err
    assert train(*LAKE, "--seed", 4, "--out", out, "--resume", "never") == 2
    assert f"{place / 'x'} is the current one or above it" in capsys.readouterr().err
    monkeypatch.chdir(place)
    assert train(*LAKE, "--seed", 4, "--out", "x/y/..", "--resume", "never") == 0
    assert steps_of(place / "x-before") == steps_of(place / "x") == 20_000


@pytest.mark.parametrize("line", ["environment = 3", "environment_arguments = 3", "checkpoint_dir = 3"])
def test_settings_of_a_run_that_somebody_has_edited_are_told(line, place, capsys):
    assert train(*LAKE) == 0
    file = place / LAKE_RUN / "config.toml"
    kept = [each for each in file.read_text().splitlines() if each.split()[0] != line.split()[0]]
    file.write_text("\n".join([*kept, line]))
    for words in (["train", *LAKE], ["show", LAKE_RUN], ["report", LAKE_RUN, "--html", "x.html"]):
        capsys.readouterr()
        assert main(words) == 2
        assert f"{file.relative_to(place)}: {line.split()[0]} must be " in capsys.readouterr().err


def test_a_run_without_its_number_of_steps_is_done_with_those_that_it_made(place, capsys):
    assert train(*LAKE) == 0
    file = place / LAKE_RUN / "config.toml"
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "total_steps" not in line))
    assert train(*LAKE) == 0
    assert "is done. With more --total-steps than 20,000 it goes on." in capsys.readouterr().out


@pytest.mark.parametrize("told", ["{}", '{"steps": "many"}', "[]"])
def test_a_result_that_somebody_has_edited_is_made_again(told, place, capsys):
    assert train(*LAKE) == 0
    result = place / LAKE_RUN / "result.json"
    result.write_text(told)
    assert train(*LAKE) == 0
    assert steps_of(place / LAKE_RUN) == 20_000


def test_a_checkpoint_that_has_to_be_there_is_looked_for_at_once(no_training, place, capsys):
    assert train(*LAKE, "--resume", "must") == 2
    assert "There is no checkpoint in runs/FrozenLake-v1/checkpoints" in capsys.readouterr().err
    assert list(place.iterdir()) == []


# Its end


ENDLESS = """
import os, signal, gymnasium as gym
from gymnasium.spaces import Discrete
class Endless(gym.Env):
    observation_space, action_space, made = Discrete(2), Discrete(2), 0
    def reset(self, *, seed=None, options=None):
        return 0, {}
    def step(self, action):
        Endless.made += 1
        if Endless.made == 20_000:
            os.kill(os.getpid(), signal.SIGTERM)
        return 1, 0.0, False, False, {}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "total_steps, seconds, why", [(10_000, 30, "ended by SIGTERM"), (100, 0.01, "it took")]
)
def test_an_evaluation_has_an_end_and_takes_nothing_away(
    place, capsys, monkeypatch, total_steps, seconds, why
):
    (place / "endless.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "endless", raising=False)
    monkeypatch.setattr(training, "_EVALUATION_SECONDS", seconds)
    before = signal.getsignal(signal.SIGALRM)
    words = ("endless:Endless", "--total-steps", total_steps, "--n-envs", 2, "--out", "x")
    assert train(*words) == 0
    said = capsys.readouterr().out
    assert f"not known: {why}" in said and " evaluate x`" in said
    assert steps_of(place / "x") == total_steps and load("x").agent.steps == total_steps
    assert signal.getsignal(signal.SIGALRM) == before


def test_an_end_in_time_is_not_taken_for_an_error_of_the_code_that_just_runs():
    with pytest.raises(Ended, match="0.05 s"), ended_after(0.05, ()), suppress(Exception):
        time.sleep(30)


def test_a_return_that_ended_the_run_is_said(place, capsys):
    words = ("--total-steps", "1e12", "--progress-interval", "0.02", "--stop-at-return", "0.01")
    assert train(*LAKE, *words) == 0
    assert "the mean return has reached --stop-at-return 0.01" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_whose_lines_nobody_reads_goes_on_to_its_end(place):
    command = [
        sys.executable,
        "-m",
        "dist_classicrl",
        "train",
        *LAKE,
        "--progress-interval",
        "0",
        "--log-interval",
        "0",
    ]
    for _ in range(2):  # it trains, and says that it is done
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, "")
    assert steps_of(place / "runs" / "FrozenLake-v1") == 20_000


def test_a_run_is_not_both_quiet_and_verbose(place, capsys):
    assert train(*LAKE, "-q", "-v") == 2
    assert "--quiet shows nothing of the run and --verbose more of it" in capsys.readouterr().err
    assert not (place / LAKE_RUN).exists()


CLOSED = "Standard output cannot be written: it is closed. Let it go to a file, with > FILE."


@pytest.mark.slow
def test_a_run_whose_output_is_closed_goes_on_to_its_end(place):
    words = [sys.executable, "-m", "dist_classicrl", "train", *LAKE]
    for close in (">&-", "2>&-", ">&- 2>&-"):
        shutil.rmtree("runs", ignore_errors=True)
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {close}', "sh", *words], capture_output=True, text=True, timeout=60
        )
        told = "" if "2>&-" in close else f"Error: {CLOSED}\n"
        assert (done.returncode, done.stderr) == (0 if close == "2>&-" else 2, told)
        assert steps_of(place / "runs" / "FrozenLake-v1") == 20_000
        assert (place / "runs" / "FrozenLake-v1" / "result.json").exists()


class Remover(BaseCallback):
    """Removes the folder of the run once it has begun."""

    def _on_training_start(self):
        shutil.rmtree(LAKE_RUN)


def test_a_run_whose_folder_was_removed_keeps_what_it_learned(place, capsys, monkeypatch):
    monkeypatch.setattr(training, "_shown", lambda run, display: Remover())
    assert train(*LAKE) == 0
    told = capsys.readouterr().err
    assert "No checkpoint could be written" in told and "Log lines cannot be written" in told
    assert steps_of(place / LAKE_RUN) == 20_000
    assert train(*LAKE) == 0
    assert "is done. It cannot go on: it has made 20,000 steps" in capsys.readouterr().out


def test_the_settings_of_a_run_are_taken_over_without_its_places(place, capsys):
    given = {"checkpoint_dir": "ck", "log_dir": "lg", "discount_factor": 0.5}
    job = begun("FrozenLake-v1", (), given, None, place / "a")
    same = gather(None, (), {}, job.folder.config, place / "a").settings
    other = gather(None, (), {}, job.folder.config, place / "b").settings
    assert "checkpoint_dir and log_dir of " in capsys.readouterr().err
    chosen = gather(None, (), {"log_dir": "lg"}, job.folder.config, place / "b").settings
    assert [each["checkpoint_dir"] for each in (same, other)] == [str(place / "ck"), None]
    assert [each["log_dir"] for each in (same, other, chosen)] == [str(place / "lg"), None, "lg"]
    assert other["discount_factor"] == 0.5
    (place / "own.toml").write_text('checkpoint_dir = "ck"')
    assert gather("Taxi-v4", (), {}, place / "own.toml", None).settings["checkpoint_dir"] == "ck"


def test_the_home_of_the_user_has_its_short_name_in_a_file_too(place, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    (place / "own.toml").write_text('checkpoint_dir = "~/ck"\nlog_dir = "~/lg"')
    settings = gather("Taxi-v4", (), {}, place / "own.toml", None).settings
    assert (settings["checkpoint_dir"], settings["log_dir"]) == (str(place / "ck"), str(place / "lg"))


@pytest.mark.parametrize("handler, is_heard", [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_terminal_that_goes_stops_a_run_in_order(place, monkeypatch, handler, is_heard):
    asked = []

    def stop(agent, env, callbacks, **arguments):
        asked.extend(arguments["stop_signals"])
        raise TrainingStopped(75, "a signal", None, 0)

    monkeypatch.setattr("dist_classicrl.agent.agent.DistAsyncQLearning.train", stop)
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with pytest.raises(TrainingStopped):
            train(*LAKE)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (signal.SIGHUP in asked) == is_heard and "SIGTERM" in asked


def test_a_signal_by_which_a_worker_leaves_is_not_taken_for_another(place):
    assert train(*LAKE, "--leave-signals", "SIGHUP", "-q") == 0


def test_names_of_signals_need_no_sig(place):
    assert train(*LAKE, "--stop-signals", "USR1,TERM", "-q") == 0
    assert steps_of(place / LAKE_RUN) == 20_000


# Where it runs


@pytest.mark.parametrize(
    "variables, words, ranks",
    [
        ({}, [], 1),
        ({}, ["-n", "4"], 4),
        ({"SLURM_NTASKS": "5", "SLURM_PROCID": "0"}, [], 5),
        ({"SLURM_NTASKS": "5", "SLURM_PROCID": "0"}, ["-n", "1"], 1),
        ({"SLURM_NTASKS": "5", "SLURM_STEP_NUM_TASKS": "5", "SLURM_PROCID": "3"}, [], "rank"),
        ({"PMIX_RANK": "0"}, [], "rank"),
        ({"PMIX_RANK": "0"}, ["-n", "1"], "rank"),
        ({"PMIX_RANK": "0"}, ["-n", "4"], 4),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, ["-n", "4"], 4),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, ["-n", "3"], "rank"),
    ],
)
def test_it_starts_ranks_unless_it_is_one(variables, words, ranks, monkeypatch):
    for name in ("PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    called = []
    monkeypatch.setattr(start, "train_here", lambda job, display: called.append(job))
    monkeypatch.setattr(start, "_start_ranks", lambda job, start, *others: called.append(start.ranks) or 0)
    assert train("FrozenLake-v1", *words) == 0
    (found,) = called
    if ranks in (1, "rank"):
        assert found.settings["allow_singletons"] == (ranks == 1 and "SLURM_NTASKS" in variables)
        # Who is a rank may have to have the same seed as others.
        assert (found.settings["seed"] is None) == (ranks == "rank")
    else:
        assert found == ranks


@pytest.mark.parametrize(
    "words, env, ranks",
    [
        ([], "FrozenLake-v1", 3),
        (["--total-steps", "1e6", "Taxi-v4"], "Taxi-v4", 3),
        (["--env-id", "Taxi-v4"], "Taxi-v4", 3),
        (["--processes", "5"], "FrozenLake-v1", 5),
        (["--hostfile", "hosts"], "FrozenLake-v1", 2),
        (["--config", "a.toml"], "Taxi-v4", 4),
    ],
)
def test_what_holds_without_a_word_gives_way_to_all_that_say_it(words, env, ranks, place, monkeypatch):
    (place / "hosts").write_text("localhost slots=2\n")
    (place / "a.toml").write_text('environment = "Taxi-v4"\nranks = 4\n')
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    asked = []
    monkeypatch.setattr(
        start, "_start_ranks", lambda job, launch, *others: asked.append((job.environment, launch.ranks)) or 0
    )
    assert train("--env-if-none", "FrozenLake-v1", "--ranks-if-none", "3", *words) == 0
    assert asked == [(env, ranks)]


@pytest.mark.parametrize("words", [["--hostfile", "hosts"], ["--network", "eth1"], ["--mca", "btl", "self"]])
def test_what_is_for_mpirun_is_never_left_out(words, place, monkeypatch, capsys):
    (place / "hosts").write_text("localhost\n")
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    monkeypatch.setattr(start, "train_here", None)
    assert train(*LAKE, *words) == 2
    assert "How many ranks? Write for instance -n 4" in capsys.readouterr().err
    asked = []
    monkeypatch.setattr(start, "_start_ranks", lambda job, launch, *others: asked.append(launch.ranks) or 0)
    assert train(*LAKE, *words, "--ranks", "1") == 0
    assert asked == [1]


@pytest.mark.parametrize("words", [["--ranks", "4"], ["--max-restarts", "3"], ["--no-ulfm"]])
def test_ranks_refuse_what_is_for_who_starts_them(words, monkeypatch, capsys, no_training):
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert train(*LAKE, *words) == 2
    assert f"{words[0]} is for ranks that this command starts" in capsys.readouterr().err


@pytest.mark.parametrize("code, status", [(0, 0), (75, 75), (130, 130), (2, 2), (1, 70), (137, 70)])
def test_ranks_are_started_with_what_was_resolved(monkeypatch, place, code, status):
    plans, asked = [], []

    class Supervisor:
        def __init__(self, plan, verbose, said_by_ranks):
            plans.append(plan)

        def run(self):
            (file,) = (place / "x").iterdir()
            asked.append((file.name, file.read_text()))
            return code

    monkeypatch.setattr(start, "Supervisor", Supervisor)
    assert train("FrozenLake-v1", "-n", 3, "--out", "x", "--max-restarts", 1, "-q", "--no-ulfm") == status
    (plan,) = plans
    folder = str(place / "x")
    ((name, settings),) = asked
    assert plan.words == (
        *("-m", "dist_classicrl", "train", "--started", "--config", f"{folder}/{name}", "--out", folder),
        "--quiet",
    )
    assert (plan.ranks, plan.options.max_restarts, plan.options.survive) == (3, 1, False)
    assert "seed = " in settings
    assert not (place / "x").exists()  # no run has begun


def test_a_disk_that_can_be_read_only_hides_no_error_of_a_job(monkeypatch, place, capsys):
    class Supervisor:
        def __init__(self, *anything):
            pass

        def run(self):
            def refuse(path, missing_ok=False):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

            monkeypatch.setattr("pathlib.Path.unlink", refuse)
            raise LauncherError("Ranks cannot say how they end.")

    monkeypatch.setattr(start, "Supervisor", Supervisor)
    monkeypatch.setattr(start, "has_terminal", lambda: True)
    monkeypatch.setattr(start, "bar_of_a_job", lambda *anything: nullcontext())
    assert train("FrozenLake-v1", "-n", 3, "--out", "x") == 2
    assert capsys.readouterr().err.endswith("Error: Ranks cannot say how they end.\n")


def test_a_rank_that_was_started_leaves_the_folder_alone(monkeypatch, place):
    job = begun("FrozenLake-v1", (), {"seed": 1}, None, place / "x")
    before = job.folder.config.read_bytes()
    called = []
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setattr(start, "train_here", lambda job, display: called.append(job))
    assert train("--started", "--config", "x/config.toml", "--out", "x", "--total-steps", 5) == 0
    assert (called[0].settings["total_steps"], job.folder.config.read_bytes()) == (5, before)


# The folder of a run


def test_what_cannot_be_loaded_is_said(place, capsys):
    with pytest.raises(FileNotFoundError, match="Train first"):
        load("runs/x")
    begun("FrozenLake-v1", (), {}, None, None)
    with pytest.raises(FileNotFoundError, match="Did you mean 'runs/FrozenLake-v1'?"):
        load("runs/FrozenLake-v2")
    with pytest.raises(FileNotFoundError, match="runs/FrozenLake-v1"):
        load("FrozenLake-v1")
    assert main(["plot", "FrozenLake-v1"]) == 2
    assert "There is no 'FrozenLake-v1'" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="neither a model nor a checkpoint"):
        load("runs/FrozenLake-v1")


def test_a_bare_model_file_knows_an_environment_of_gymnasium(place, capsys):
    assert train(*LAKE, "--env-arg", "is_slippery=False", "--env-arg", "map_name=8x8") == 0
    (place / "runs" / "FrozenLake-v1" / "model.npz").rename(place / "model.npz")
    loaded = load("model.npz")
    assert (loaded.env_name, loaded.agent.steps) == ("FrozenLake-v1", 20_000)
    assert loaded.env_arguments == {"map_name": "8x8", "is_slippery": False}
    capsys.readouterr()
    assert main(["evaluate", "model.npz", "--episodes", "5"]) == 0
    assert "map_name=8x8, is_slippery=False" in capsys.readouterr().out
    # In a wrapper it is another one.
    agent = DistAsyncQLearning(seed=1)
    agent.train(TransformReward(gymnasium.make("FrozenLake-v1"), lambda reward: -reward), total_steps=100)
    assert load(agent.save_model("wrapped.npz")).env_name is None
    agent = DistAsyncQLearning(seed=1, n_envs=2)
    agent.train("Blackjack-v1", total_steps=100)  # whose observations are tuples
    assert load(agent.save_model("blackjack.npz")).env_name == "Blackjack-v1"
    # Files of earlier versions do not say it.
    about = json.loads(np.load("model.npz")["about"].tobytes())
    del about["environment"]["env_id"], about["environment"]["env_arguments"]
    arrays = {**np.load("model.npz"), "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    np.savez("old.npz", **arrays)
    assert main(["evaluate", "old.npz", "--episodes", "5"]) == 2
    assert "only that it is FrozenLake-v1 (64 states, 4 actions). Name it" in capsys.readouterr().err
    assert main(["show", "old.npz"]) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"env_id": "os:Evil-v0"},
        {"env_id": "CartPole-v1"},
        {"env_id": "Nothing-v0"},
        {"env_arguments": {"map_name": "4x4"}},
        {"env_arguments": {"frobnicate": 1}},
        {"fingerprint": "0" * 64},
    ],
)
def test_what_a_model_file_says_of_its_environment_has_to_be_true(place, changes):
    train(*LAKE, "--env-arg", "map_name=8x8")
    model = place / "runs" / "FrozenLake-v1" / "model.npz"
    about = json.loads(np.load(model)["about"].tobytes())
    about["environment"].update(changes)
    arrays = {**np.load(model), "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    np.savez("model.npz", **arrays)
    assert load("model.npz").env_name is None


def test_a_bare_model_file_does_not_know_an_environment_of_ones_own(place):
    train("garnet", "--env-arg", "n_states=16", *LAKE[1:])
    folder = place / "runs" / "garnet"
    assert load(folder / "model.npz").env_name == "garnet"
    bare = folder.rename(place / "runs" / "x") / "model.npz"
    bare.rename(place / "model.npz")
    loaded = load("model.npz")
    assert (loaded.env_name, loaded.agent.steps) == (None, 20_000)
    with pytest.raises(SettingsError, match="does not tell which environment"):
        loaded.make_env()
    assert (
        loaded.agent.evaluate(loaded.in_environment("FrozenLake-v1", {}).make_env(), episodes=1).episodes == 1
    )


def test_what_cannot_be_at_all_is_said_before_what_cannot_be_in_this_folder(capsys):
    assert train(*LAKE) == 0
    capsys.readouterr()
    for words, message in (
        (("--env-arg", "is_slipery=False"), "Did you mean 'is_slippery'?"),
        (("--discount-factor", "2"), "discount_factor must be a number from 0 to 1"),
        (("--learning-rate", "7"), "learning_rate must be above 0 and at most 1"),
        (("--heartbeat-timeout", "1", "--seed", "3"), "heartbeat_timeout must be at least 4 times"),
        (("--discount-factor", "0.5"), "was begun with another discount_factor"),
    ):
        assert train(*LAKE, *words) == 2
        assert message in capsys.readouterr().err


def test_paths_are_shown_from_here_where_that_is_shorter(place):
    assert short_path(place / "runs" / "x") == "runs/x"
    assert short_path("/elsewhere/x") == "/elsewhere/x"
