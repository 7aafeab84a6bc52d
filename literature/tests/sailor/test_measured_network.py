"""Messages and ring all-reduces over fitted links."""

import pytest

from pipecut_literature.sailor.profile import LinkFit, NotProfiledError, SailorLinks, SailorReplica
from pipecut_literature.sailor.time import BUCKET_BYTES, NodeLink, all_reduce_ns, links_out, send_ns

FLAT = LinkFit(0.0, 0.0, 10.0, 1e10)
SLOW = LinkFit(0.0, 0.0, 1.0, 1e9)
FOUR = LinkFit(0.0, 0.0, 40.0, 4e10)
LINKS = SailorLinks({("A", 1): FLAT, ("A", 4): FOUR, ("B", 1): SLOW, ("B", 2): SLOW}, {})
A4 = SailorReplica((("A", 4, "z"),), 4)
B2 = SailorReplica((("B", 8, "z"),), 2)
MB = 10**6


def test_messages_of_several_cards_share_the_way_out():
    assert NodeLink(FLAT, 1).message_ns(20 * MB) == 2_000_000
    assert NodeLink(FOUR, 4).message_ns(20 * MB) == 2_000_000
    assert NodeLink(SLOW, 2).message_ns(20 * MB) == 40_000_000
    assert NodeLink(SLOW, 2).message_ns(0) == 0


def test_a_message_below_1_mb_takes_the_time_of_1_mb():
    rising = LinkFit(0.0, 2.0, 1.0, 1e10)
    assert NodeLink(rising, 1).message_ns(1) == NodeLink(rising, 1).message_ns(MB) == 1_000_000


def test_beyond_its_vertex_a_fit_no_longer_falls():
    peak = LinkFit(-1.0, 4.0, 1.0, 1e10)  # 5 GB/s at L = 2, which is 4 MB; 0 near 19 MB
    assert NodeLink(peak, 1).message_ns(4 * MB) == 800_000
    assert NodeLink(peak, 1).message_ns(400 * MB) == pytest.approx(100 * 800_000, abs=200)
    # The message still takes longer the larger it is.


def test_a_fit_without_bandwidth_is_named():
    with pytest.raises(NotProfiledError, match="bandwidth between nodes: the fit gives"):
        NodeLink(LinkFit(0.0, 1.0, -1.0, 1e9), 1).message_ns(MB)


def test_the_fit_for_the_cards_in_use_is_taken():
    assert links_out(LINKS, A4) == [NodeLink(FOUR, 4)]
    assert links_out(LINKS, A4, 1) == [NodeLink(FLAT, 1)]
    assert links_out(LINKS, SailorReplica((("A", 2, "z"), ("B", 2, "z")), 4)) == [
        NodeLink(FLAT, 1),
        NodeLink(SLOW, 2),
    ]
    with pytest.raises(NotProfiledError, match="card C: no fit"):
        links_out(LINKS, SailorReplica((("C", 1, "z"),), 1))


def test_a_boundary_passes_at_the_rate_of_one_card_of_the_slower_end():
    assert send_ns(LINKS, A4, A4, 20 * MB) == 2_000_000
    assert send_ns(LINKS, A4, B2, 20 * MB) == send_ns(LINKS, B2, A4, 20 * MB) == 20_000_000


def test_a_ring_moves_two_shares_over_every_link():
    assert all_reduce_ns(LINKS, {A4: (1, 80 * MB)}) == 0
    assert all_reduce_ns(LINKS, {A4: (4, 80 * MB)}) == 2 * 3 * 2_000_000
    # Two replicas of 4 and 2 cards: the slower link carries two rings with twice the gradients each.
    assert all_reduce_ns(LINKS, {A4: (1, 80 * MB), B2: (1, 160 * MB)}) == 2 * 1 * 160_000_000


def test_large_gradients_go_in_buckets():
    whole, part = all_reduce_ns(LINKS, {A4: (2, BUCKET_BYTES)}), all_reduce_ns(LINKS, {A4: (2, 80 * MB)})
    assert all_reduce_ns(LINKS, {A4: (2, 2 * BUCKET_BYTES + 80 * MB)}) == 2 * whole + part
