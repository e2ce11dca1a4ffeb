"""`bench`: rates of whole trainings; here so short ones that the numbers mean nothing."""

import json

import pytest
from learned_runs import run_command

from dist_classicrl.cli import errors
from dist_classicrl.diagnosis import rates
from dist_classicrl.environments.resolve import resolve


@pytest.fixture
def little(monkeypatch):
    """Measure two environments instead of five."""
    monkeypatch.setattr(rates, "ONE_CORE", (rates.FROZEN_LAKE, rates.STEPPED_LAKE))
    monkeypatch.setattr(rates, "TOGETHER", (rates.FROZEN_LAKE,))
    monkeypatch.setattr(rates, "_PUSH_ROUNDS", 3)


@pytest.mark.slow
def test_rates_as_json(little, capsys):
    words = ("bench", "--seconds", "0.05", "--rounds", "2", "--json")
    status, out, _ = run_command(capsys, *words)
    data = json.loads(out)
    assert status == 0 and data["machine"]["cores"] >= 1 and data["together"] == []
    compiled, stepped = data["one_core"]
    assert (compiled["name"], stepped["name"]) == ("FrozenLake 8x8", "FrozenLake 8x8, by Gymnasium")
    for rate in (compiled, stepped):
        assert len(rate["runs"]) == 2 and rate["workers"] == 1
        assert rate["steps_per_second"] == pytest.approx(sum(rate["runs"]) / 2)
    (push,) = data["pushes"]
    assert 100 < push["entries"] <= 256 and push["n_bytes"] == push["entries"] * 28
    assert all(push[stage] > 0 for stage in ("pack", "apply", "refresh", "rebase"))


@pytest.mark.slow
def test_what_is_said_to_be_stepped_is():
    stepped = [resolve(rates.problem(name), 1, None).stepped is not None for name in rates.ONE_CORE]
    assert stepped == ["by Gymnasium" in name for name in rates.ONE_CORE]


def test_runs_last_as_long_as_asked(little, monkeypatch):
    asked = []
    trainer = rates._Trainer(rates.problem(rates.FROZEN_LAKE), 0.03, is_rank=False)
    train = trainer._agent.train
    monkeypatch.setattr(
        trainer._agent,
        "train",
        lambda env, total_steps: asked.append(total_steps) or train(env, total_steps=total_steps),
    )
    assert trainer.run().seconds >= 0.03
    assert len(asked) > 1 and asked == sorted(asked)
    before = len(asked)
    trainer.run()
    assert asked[before] == asked[before - 1]  # what was long enough is tried first


def test_rates_as_tables(little, capsys, monkeypatch):
    rate = rates.Rate(rates.FROZEN_LAKE, 2e6, (1e6, 2e6, 3e6), 0.25, 3)
    monkeypatch.setattr(rates, "learning_rates", lambda *_: [rate, rates.Rate("slow", 5e4, (5e4,), 0.0, 1)])
    monkeypatch.setattr(
        rates, "rates_of_ranks", lambda ranks, *_: [rates.Rate(rate.name, 3e6, (3e6,), 0.25, ranks - 1)]
    )
    _, out, _ = run_command(capsys, "bench", "--ranks", "4")
    assert "FrozenLake 8x8   2.00 M  1.00 M to 3.00 M\nslow             50.0 k  50.0 k to 50.0 k\n" in out
    assert "A push after 50,000 steps" in out
    last = out.splitlines()[-1].split("  ")
    assert "Learning under mpirun: a server and 3 workers" in out
    assert [cell.strip() for cell in last if cell] == [
        "FrozenLake 8x8",
        "3.00 M",
        "3.00 M to 3.00 M",
        "1.50",
        "25.0%",
    ]


def test_one_process_is_measured_in_a_batch_script_of_several_tasks(little, monkeypatch):
    """As SLURM starts such a script: what it promises are ranks that something else would start."""
    for name, value in (("SLURM_JOB_ID", "77"), ("SLURM_NTASKS", "3"), ("SLURM_PROCID", "0")):
        monkeypatch.setenv(name, value)
    (rate,) = rates.learning_rates([rates.FROZEN_LAKE], 0.01, 1)
    assert rate.workers == 1 and rate.steps_per_second > 0.0


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"},
        {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"},
    ],
)
def test_a_rank_is_no_process_alone(variables, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rates, "learning_rates", None)
    monkeypatch.setattr(errors, "_FIRST_WORD_SECONDS", 0.0)
    status, _, err = run_command(capsys, "bench")
    assert status == 2 and "started this one as one of 3. Type it without them" in err
