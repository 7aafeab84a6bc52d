"""Groups of the line, against the line written out device by device."""

from __future__ import annotations

import pytest

from pipecut.formulation.problem.groups import Group, line
from tests.examples import chain, instance_of, matrix, mesh


@pytest.mark.parametrize("servers", [(1,), (4,), (1, 1, 1), (3, 1, 4, 1, 5)])
def test_a_group_of_the_line_counts_the_devices_of_a_stretch(servers: tuple[int, ...]) -> None:
    instance = instance_of(chain([matrix("one")], []), mesh(*servers))
    devices = line(instance)
    for first in range(len(devices)):
        for count in range(1, len(devices) - first + 1):
            stretch = devices[first : first + count]
            expected = tuple((server, stretch.count(server)) for server in dict.fromkeys(stretch))
            assert Group.on_line(instance, first, count).counts == expected
