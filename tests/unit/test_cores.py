"""How many ranks of a host learn where all wait for each other, on hosts and with bindings of all kinds."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from dist_classicrl.engines.roles import cores
from dist_classicrl.engines.supersteps import server as superstep_server
from dist_classicrl.engines.supersteps.server import SuperstepServer


def settled(monkeypatch, hosts, bound, quotas=None, serves_only=False, cards=(), **run):
    """Return what ranks on these hosts are told, which are bound to these cores and have such quotas.

    The ranks `cards` learn on one.
    """
    quotas = quotas or [None] * len(hosts)
    said = []
    for rank, (own, quota) in enumerate(zip(bound, quotas, strict=True)):
        monkeypatch.setattr(cores, "bound_cores", lambda own=own: list(own))
        monkeypatch.setattr(cores, "core_quota", lambda quota=quota: quota)
        start = SimpleNamespace(members=(0,), head=0, is_head=False)
        start.agree = lambda error, description, numbers: said.append(numbers) or np.array([numbers])
        card = "a card" if rank in cards else None
        cores.settle_cores(a_run(card=card, **run), a_group(hosts), start, serves_only)
    told = a_run(**run)
    start = SimpleNamespace(members=tuple(range(len(hosts))), head=0, is_head=True)
    answers = iter([said, [cores._marked(sorted(own), 1 + max(map(max, bound))) for own in bound]])
    start.agree = lambda *_: np.array(next(answers), np.int64)
    cores.settle_cores(told, a_group(hosts), start, serves_only)
    return told.told


def a_run(simulator="compiled", large=None, card=None):
    return SimpleNamespace(told={}, source=SimpleNamespace(simulator=simulator), large=large, card=card)


def a_group(hosts):
    return SimpleNamespace(host_of=lambda rank: hosts[rank])


def playing(told, hosts, ranks=None):
    return cores.with_cores(told, a_group(hosts), range(len(hosts)) if ranks is None else ranks)


def test_as_many_ranks_of_a_host_learn_as_it_has_cores(monkeypatch, caplog):
    hosts = ["a", "a", "a", "b", "b"]
    with caplog.at_level(logging.INFO, "dist_classicrl"):
        told = settled(monkeypatch, hosts, [range(2)] * 3 + [range(8)] * 2)
    assert told["cores"] == {"a": 2, "b": 8}
    assert playing(told, hosts) == [0, 1, 3, 4]
    said = ["a has 2 cores for 3 ranks that could learn: so many do"]
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == said


def test_a_server_that_does_not_learn_needs_no_core_besides(monkeypatch, caplog):
    with caplog.at_level(logging.INFO, "dist_classicrl"):
        settled(monkeypatch, ["a"] * 3, [range(2)] * 3, serves_only=True)
    assert not caplog.records


def test_all_learn_where_one_of_them_has_a_card(monkeypatch):
    hosts = ["a"] * 3
    assert playing(settled(monkeypatch, hosts, [range(1)] * 3, cards=[2]), hosts) == [0, 1, 2]


def test_those_are_taken_that_are_there(monkeypatch):
    hosts = ["a"] * 4
    told = settled(monkeypatch, hosts, [range(2)] * 4)
    assert playing(told, hosts, [3, 1, 2]) == [3, 1]


@pytest.mark.parametrize(
    ("bound", "most"),
    [
        ([{0}, {1}, {2}], 3),  # as mpirun binds them
        ([{0}, {0}, {1}], 2),
        ([{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 2, 3}], 8),
        ([{0, 1}, {1, 2}, {1, 2}], 3),
        ([{31, 32}, {32, 700}, {0}], 4),
    ],
)
def test_cores_of_different_bindings_count_once_each(monkeypatch, bound, most):
    assert settled(monkeypatch, ["a"] * 3, bound)["cores"] == {"a": most}


def test_a_control_group_may_have_fewer(monkeypatch):
    told = settled(monkeypatch, ["a"] * 3 + ["b"], [range(64)] * 4, [2, 2, 2, None])
    assert told["cores"] == {"a": 2, "b": 64}


def test_all_learn_that_step_environments_or_may_have_to_tell_rows(monkeypatch):
    hosts = ["a"] * 4
    divided = SimpleNamespace(is_divided=True)
    for run in ({"simulator": None}, {"large": divided}):
        told = settled(monkeypatch, hosts, [range(2)] * 4, **run)
        assert playing(told, hosts) == [0, 1, 2, 3]


def test_a_report_asks_once_who_has_a_core_whatever_the_number_of_ranks(monkeypatch):
    asked = []

    def counted(*arguments):
        asked.append(arguments)
        return cores.with_cores(*arguments)

    monkeypatch.setattr(superstep_server, "with_cores", counted)
    channel = SimpleNamespace(last_heard=1.0)
    server = object.__new__(SuperstepServer)
    server.told = {"cores": {"a": 8}}
    server.group = SimpleNamespace(rank=0, host_of=lambda rank: "a", wire=SimpleNamespace(now=lambda: 3.0))
    learners = [SimpleNamespace(rank=rank, channel=channel) for rank in range(1, 100)]
    server.members = SimpleNamespace(peers=SimpleNamespace(learners=learners))
    assert [each.rank for each in server.who_learns()] == list(range(8))
    assert len(asked) == 1


def test_nobody_is_left_out_where_nothing_was_told():
    assert playing({}, ["a"] * 3) == [0, 1, 2]
    assert playing({"cores": {"a": 1}}, ["a", "b", "b", "a"]) == [0, 1, 2]  # b came later
