"""What is the device's time in a profile, what the host's, and how updates are shared out."""

from fractions import Fraction

import pytest

from pipecut_literature.sailor.profile import (
    DegreeProfile,
    LayerSizes,
    LayerTimes,
    NotProfiledError,
    ProfiledMachine,
    SailorLinks,
)


def rows(**forward_and_backward):
    return {
        int(size[1:]): tuple(LayerTimes(forward, backward, 7) for forward, backward in layers)
        for size, layers in forward_and_backward.items()
    }


BUSY = DegreeProfile.of(rows(b1=[(10, 20), (30, 40)], b2=[(18, 40), (58, 80)], b4=[(36, 80), (116, 160)]))


def test_a_busy_device_is_taken_as_it_is():
    assert BUSY.device[2] == ((18, 40), (58, 80))
    assert BUSY.host_ns == (0, 0)
    assert BUSY.device_ns(1, 2) == (58, 80)


def test_sizes_between_are_interpolated_and_sizes_beyond_are_in_proportion():
    assert BUSY.device_ns(0, 3) == (27, 60)
    assert BUSY.device_ns(0, 8) == (72, 160)
    assert DegreeProfile.of(rows(b2=[(18, 40)])).device_ns(0, 1) == (9, 20)


def test_entries_that_do_not_grow_show_the_host():
    profile = DegreeProfile.of(rows(b1=[(60, 20)], b2=[(40, 40)], b4=[(44, 80)], b8=[(80, 160)]))
    # Forward: 60 and 40 grow by less than half of the doubling, 44 to 80 by more.
    assert profile.host_ns == (50,)
    assert [profile.device_ns(0, size)[0] for size in (1, 2, 4, 8)] == [11, 22, 44, 80]
    assert [profile.device_ns(0, size)[1] for size in (1, 2, 4, 8)] == [20, 40, 80, 160]


def test_the_threshold_lies_between_unchanged_and_in_proportion():
    at = DegreeProfile.of(rows(b1=[(75, 1)], b2=[(100, 2)]))
    above = DegreeProfile.of(rows(b1=[(76, 1)], b2=[(100, 2)]))
    assert (at.host_ns, above.host_ns) == ((0,), (76,))
    assert above.device_ns(0, 1)[0] == 50


def test_a_host_bound_backward_pass_becomes_the_device_s():
    profile = DegreeProfile.of(rows(b1=[(10, 40)], b2=[(20, 44)]))
    assert profile.device_ns(0, 1) == (10, 22)
    assert profile.host_ns == (0,)


def test_a_jump_behind_a_busy_size_is_the_device_s_own():
    profile = DegreeProfile.of(rows(b1=[(10, 20)], b2=[(20, 40)], b4=[(40, 80)], b8=[(50, 90)]))
    assert profile.host_ns == (0,)
    assert profile.device_ns(0, 4) == (40, 80)


SIZES = tuple(LayerSizes(parameters, 0, 0, 0) for parameters in (60, 20, 20, 20, 40))


def test_one_update_for_all_layers_is_that_of_the_profiled_network():
    # Rows 2 and 3 repeat row 1: the network had layers 0, 1 and 4, of 120 bytes in all.
    layers = [LayerTimes(*one, 600) for one in ((1, 2), (3, 4), (3, 4), (3, 4), (5, 6))]
    profile = DegreeProfile.of({1: tuple(layers)})
    assert profile.update_ns(SIZES, 0, 5, 1) == 600 * 160 // 120
    assert profile.update_ns(SIZES, 1, 3, 9) == 200


def test_updates_by_layer_are_summed():
    layers = tuple(LayerTimes(1, 2, update) for update in (50, 10, 10, 10, 30))
    assert DegreeProfile.of({1: layers}).update_ns(SIZES, 1, 5, 1) == 60


def machine():
    table = {(1, 2): (LayerTimes(60, 20, 1),), (2, 2): (LayerTimes(60, 40, 1),), (1, 4): (LayerTimes(5, 6, 1),)}
    return ProfiledMachine.of({"A": table}, {2: SIZES[:1]}, SailorLinks({}, {}))


def test_what_was_not_profiled_is_named():
    assert machine().profile("A", 4).device_ns(0, 1) == (5, 6)
    with pytest.raises(NotProfiledError, match="card A: no profile of tensor-parallel degree 8, only of 2, 4"):
        machine().profile("A", 8)
    with pytest.raises(NotProfiledError, match="card B: no profile; there are profiles of A"):
        machine().profile("B", 2)


def test_uncleaned_is_the_profile_as_it_stands():
    assert machine().profile("A", 2).device_ns(0, 1)[0] == 30
    plain = machine().uncleaned().profile("A", 2)
    assert (plain.device_ns(0, 1)[0], plain.host_ns) == (Fraction(60), (0,))
