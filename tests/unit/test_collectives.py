"""Operations of MPI with a deadline, on one rank. tests/mpi has several ranks."""

from types import SimpleNamespace

import pytest

from dist_classicrl.comm import collectives


@pytest.mark.parametrize("size", [0, 2])
def test_asking_for_deaths_leaves_no_group_behind(size):
    groups = []

    def get_failed():
        groups.append(SimpleNamespace(Get_size=lambda: size, Free=lambda: groups.pop()))
        return groups[-1]

    assert collectives._has_deaths(SimpleNamespace(Get_failed=get_failed)) is (size > 0)
    assert groups == []
