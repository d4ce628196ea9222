"""How many maps forks may have."""

import gc
from concurrent.futures import ThreadPoolExecutor

from kvc.runtime.memory import shared_pages
from kvc.runtime.memory.shared_pages import Lease, MapBudget


class Owner:
    pass


def test_half_of_all_is_for_maps_that_save_memory_and_a_quarter_for_whole_ones():
    owner, budget = Owner(), MapBudget(100)
    lease = Lease(budget, owner)
    assert not lease.resize(51)
    assert lease.count == budget.taken == 0
    assert lease.resize(50)
    assert not lease.resize(51)
    assert lease.resize(75, whole=True)
    assert not lease.resize(76, whole=True)
    assert lease.resize(60)
    assert lease.count == budget.taken == 60


def test_maps_go_back_with_their_owner():
    owner, budget = Owner(), MapBudget(100)
    Lease(budget, owner).resize(40)
    assert budget.taken == 40
    del owner
    gc.collect()
    assert budget.taken == 0


def test_leases_in_many_threads_add_up():
    budget, owners = MapBudget(1 << 20), [Owner() for _ in range(8)]
    leases = [Lease(budget, owner) for owner in owners]

    def use(lease):
        for count in [3, 7, 1, 12] * 50:
            assert lease.resize(count)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, leases))
    assert budget.taken == 8 * 12


def test_the_system_says_how_many_there_are(monkeypatch, tmp_path):
    setting = tmp_path / "max_map_count"
    monkeypatch.setattr(shared_pages, "_SETTING", setting)
    assert MapBudget().most == 65530
    setting.write_text("1000\n")
    assert MapBudget().most == 1000
