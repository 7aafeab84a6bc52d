"""What stages have of the adapters of servers: numbers by hand, and what the rule keeps on generated clusters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecut.formulation.problem.cluster import DeviceClass, Server, cluster_graph
from pipecut.formulation.problem.groups import Group, GroupKind
from pipecut.formulation.problem.instance import Instance
from pipecut.formulation.problem.modes import Mode
from pipecut.formulation.problem.shares import lanes
from pipecut.formulation.problem.units import Link
from tests.examples import chain, instance_of, matrix
from tests.generators import groups, instances

CARD = DeviceClass("card", 10**12, 10**12)
INSIDE, BETWEEN = Link(3_600_000, 1), Link(400_000, 20)


def two_servers(adapters: int, devices: int = 8) -> Instance:
    servers = [Server(name, CARD, devices, INSIDE, adapters) for name in "ab"]
    return instance_of(chain([matrix("one")], []), cluster_graph("two", servers, [], mesh=BETWEEN))


@pytest.mark.parametrize(
    ("adapters", "one", "other", "lanes"),
    [
        (8, 8, 8, 8),
        (8, 4, 8, 4),
        (8, 1, 8, 1),
        (4, 8, 8, 4),
        (4, 3, 8, 1),
        (1, 8, 8, 1),
        (0, 8, 8, 1),
        (8, 8, 5, 5),
    ],
)
def test_a_boundary_uses_the_adapters_of_the_stage_that_has_fewer(
    adapters: int, one: int, other: int, lanes: int
) -> None:
    groups = Group(((0, one),)), Group(((1, other),))
    assert Group.link_between(two_servers(adapters), *groups) == Link(lanes * 400_000, 20)


def test_a_stage_in_two_servers_waits_for_the_server_with_more_rows_for_an_adapter() -> None:
    """Six of the eight rows leave over three adapters, two over one: eight rows in the time of two over one."""
    instance = two_servers(4)
    assert lanes(instance, ((0, 6), (1, 2))) == 4
    assert lanes(instance, ((0, 7), (1, 1))) == 3  # three adapters for seven rows


def test_stages_within_a_server_use_as_many_of_its_links() -> None:
    groups = Group(((0, 4),)), Group(((0, 2),))
    assert Group.link_between(two_servers(8), *groups) == Link(2 * 3_600_000, 1)
    assert Group.link_between(two_servers(0), *groups) == INSIDE


@pytest.mark.parametrize(
    ("adapters", "replicas", "bits"),
    # One ring over eight adapters; eight rings with one each; four adapters for eight rings; one for two.
    [(8, 16, 3_200_000), (8, 2, 400_000), (4, 2, 200_000), (1, 8, 200_000), (0, 2, 400_000)],
)
def test_rings_share_adapters(adapters: int, replicas: int, bits: int) -> None:
    kind = GroupKind.of(two_servers(adapters), Group(((0, 8), (1, 8)), Mode(replicas)))
    assert kind.link == Link(bits, 20)


def test_a_replica_in_two_servers_has_all_their_adapters() -> None:
    kind = GroupKind.of(two_servers(4), Group(((0, 8), (1, 8))))
    assert kind.inner == Link(1_600_000, 20)
    two = GroupKind.of(two_servers(4, devices=4), Group(((0, 4), (1, 2)), Mode(2)))
    assert two.inner == Link(800_000, 20)  # the first three devices are in one server, the others in both
    assert GroupKind.of(two_servers(4), Group(((0, 2), (1, 2)), Mode(2))).inner == INSIDE


@given(instances(), st.data())
def test_no_stage_has_more_lanes_than_devices_or_adapters(instance: Instance, data: st.DataObject) -> None:
    group = data.draw(groups(instance))
    own = [instance.servers[server].adapters for server, _ in group.counts]
    assert 1 <= lanes(instance, group.counts) <= (sum(own) if all(own) else 1) <= max(1, instance.devices)
    if all(own):
        assert lanes(instance, group.counts) <= group.devices


def test_more_adapters_than_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="server a: 9 adapters for 8 devices; give several of one device as one"):
        two_servers(9)
