"""Clusters of machines and devices of the library: whole, with own numbers, and with mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import pytest

from pipecut.formulation.problem.cluster import Cluster, Server, servers_of
from pipecut.formulation.problem.layers import Layer, Split
from pipecut.formulation.problem.units import Link
from pipecut.ingest.mistakes import ScenarioError
from pipecut.ingest.scenario import machines
from pipecut.ingest.scenario.library import Library, near_names
from pipecut.ingest.scenario.load import Scenario, load_scenario
from pipecut.ingest.text.yaml_source import parse_document
from tests.command_line import Command

ROOT = Path(__file__).parents[3]
TWO_BYTES = "training: {global_batch: 8, bytes_per_element: 2}"
FOUR_BYTES = "training: {global_batch: 8, bytes_per_element: 4}"
ELEMENTS_OF_MODEL = "training: {global_batch: 8}"
GBIT, GIB, TERA = 10**9, 2**30, 10**12


def text(cluster: str, rest: str = TWO_BYTES) -> str:
    rows = "".join(f"  {line}\n" for line in cluster.splitlines())
    return f"name: own\nmodel: {{graph: g.json}}\ncluster:\n{rows}{rest}\n"


def load(folder: Path, cluster: str, rest: str = TWO_BYTES, overrides: tuple[str, ...] = ()) -> Scenario:
    path = folder / "own.yaml"
    path.write_text(text(cluster, rest), encoding="utf-8")
    return load_scenario(path, overrides)


def servers(folder: Path, cluster: str, rest: str = TWO_BYTES, *overrides: str) -> tuple[Server, ...]:
    return servers_of(load(folder, cluster, rest, overrides).cluster)


def error(folder: Path, cluster: str, rest: str = TWO_BYTES, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load(folder, cluster, rest, overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_one_line_is_a_whole_cluster(tmp_path: Path) -> None:
    scenario = load(tmp_path, "machines: {dgx-h100: 4}")
    found = servers_of(scenario.cluster)
    assert [server.name for server in found] == [f"dgx-h100-{number}" for number in range(4)]
    assert {server.devices for server in found} == {8}
    assert {server.link for server in found} == {Link(450 * 8 * GBIT)}
    (device,) = {server.device_class for server in found}
    assert (device.name, device.memory_bytes) == ("h100-sxm", 81559 * 2**20 - 9 * GIB // 2)
    assert device.flops_per_second == 989_400_000_000_000 and device.price_per_hour == 0
    cluster = Cluster.of(scenario.cluster)
    assert cluster.wiring.switches == ()
    assert {link for row in cluster.wiring.between for link in row if link} == {Link(400 * GBIT)}


def test_constraints_name_the_servers_of_machines(tmp_path: Path) -> None:
    rest = TWO_BYTES + "\nconstraints: {reserve: {dgx-h100: 2 GiB}, pin: [{layers: a, server: dgx-h100-1}]}"
    scenario = load(tmp_path, "machines: {dgx-h100: 2}", rest)
    assert [one.server for one in scenario.constraints.reserve] == ["dgx-h100-0", "dgx-h100-1"]
    wrong = error(tmp_path, "machines: {dgx-h100: 2}", rest.replace("dgx-h100-1}", "dgx-h100-2}"))
    assert wrong.startswith(
        "own.yaml:6: constraints.pin[0].server: no server 'dgx-h100-2'; did you mean 'dgx-h100"
    )
    by_device = rest.replace("server: dgx-h100-1", "device: h100-sxm")
    assert load(tmp_path, "machines: {dgx-h100: 2}", by_device).constraints.pins[0].device == "h100-sxm"


def test_the_peak_follows_the_bytes_of_an_element_and_arithmetic_names_another(tmp_path: Path) -> None:
    def peak(rest: str, *overrides: str) -> int:
        (server,) = servers(tmp_path, "machines: {dgx-a100: 1}", rest, *overrides)
        return server.device_class.flops_per_second

    assert peak(TWO_BYTES) == 312 * TERA
    assert peak(FOUR_BYTES) == 19_500_000_000_000
    assert peak(FOUR_BYTES, "cluster.arithmetic=tf32") == 156 * TERA
    assert peak(FOUR_BYTES, "training.bytes_per_element=2") == 312 * TERA


def test_without_a_size_the_elements_of_the_model_decide_the_peak(tmp_path: Path) -> None:
    def peaks(element_bytes: int, cluster: str, *overrides: str) -> list[int]:
        scenario = load(tmp_path, cluster, ELEMENTS_OF_MODEL, overrides)
        settled = scenario.settled(nx.DiGraph(element_bytes=element_bytes))
        assert (settled.open_peaks, settled.training.bytes_per_element) == ((), element_bytes)
        return [server.device_class.flops_per_second for server in servers_of(settled.cluster)]

    both = "machines: {dgx-a100: 1}\nservers: [{name: n, device: own, devices: 1, link: {bandwidth: 1 Gbit/s}}]\n"
    both += "devices: {own: {memory: 1 GiB, peak: 7 TFLOP/s}}\nlinks: [{between: [n, network], bandwidth: 1 GB/s}]"
    assert peaks(4, both) == [7 * TERA, 19_500_000_000_000]
    assert peaks(2, both) == [7 * TERA, 312 * TERA]
    assert peaks(4, both, "cluster.arithmetic=tf32") == [7 * TERA, 156 * TERA]
    mixed = load(tmp_path, both, "training: {global_batch: 8, precision: amp}").settled(
        nx.DiGraph(element_bytes=4)
    )
    assert servers_of(mixed.cluster)[1].device_class.flops_per_second == 312 * TERA
    tpu = "servers: [{name: n, device: tpu-v4, devices: 1}]"
    assert peaks(2, tpu) == [275 * TERA]
    with pytest.raises(ValueError, match=r"no peak of 'tpu-v4' for fp32 \(elements of 4 bytes\); it has bf16"):
        peaks(4, tpu)


def test_own_numbers_replace_single_entries(tmp_path: Path) -> None:
    whole = servers(tmp_path, "machines: {dgx-h100: 2}")[0].device_class
    overrides = ("cluster.devices.h100-sxm.memory=70 GiB", "cluster.machines.dgx-h100=3")
    found = servers(tmp_path, "machines: {dgx-h100: 2}", TWO_BYTES, *overrides)
    assert len(found) == 3
    assert found[0].device_class.memory_bytes == 70 * GIB
    assert found[0].device_class.flops_per_second == whole.flops_per_second
    peak = servers(tmp_path, "machines: {dgx-h100: 2}\ndevices: {h100-sxm: {peak: 500 TFLOP/s}}")[0].device_class
    assert (peak.memory_bytes, peak.flops_per_second) == (whole.memory_bytes, 500 * TERA)
    # an own peak asks for none of the library
    tpu = "servers: [{name: n, device: tpu-v4, devices: 1}]\ndevices: {tpu-v4: {peak: 60 TFLOP/s}}"
    assert servers(tmp_path, tpu, FOUR_BYTES)[0].device_class.flops_per_second == 60 * TERA


def test_a_machine_may_be_used_in_part_and_differently(tmp_path: Path) -> None:
    cluster = "machines: {dgx-h100: {count: 2, name: node, devices: 4, link: {latency: 2 us}, adapters: 4}}"
    scenario = load(tmp_path, cluster)
    first = servers_of(scenario.cluster)[0]
    assert (first.name, first.devices, first.link) == ("node0", 4, Link(450 * 8 * GBIT, 2_000))
    assert (first.adapters, Cluster.of(scenario.cluster).links[0][1]) == (4, Link(400 * GBIT))
    assert servers(tmp_path, cluster.replace(", adapters: 4", ", adapters: 2"))[0].adapters == 2
    assert servers(tmp_path, cluster.replace(", adapters: 4", ""))[0].adapters == 4
    faster = cluster.replace("latency: 2 us", "bandwidth: 100 GB/s")
    assert servers(tmp_path, faster)[0].link == Link(800 * GBIT)


def test_alike_machines_are_a_mesh_and_its_latency_is_the_users(tmp_path: Path) -> None:
    links = Cluster.of(
        load(tmp_path, "machines: {dgx-h100: 3}", TWO_BYTES, ("cluster.between_servers.latency=5 us",)).cluster
    ).links
    assert links[0][2] == Link(400 * GBIT, 5_000)
    own = load(tmp_path, "machines: {dgx-h100: 3}\nbetween_servers: {bandwidth: 10 Gbit/s}")
    found = Cluster.of(own.cluster)
    assert (found.links[0][2], found.servers[0].adapters) == (Link(10 * GBIT), 0)
    single = "machines: {dgx-h100: 3}\nlinks: [{between: [dgx-h100-0, dgx-h100-1], bandwidth: 1 Gbit/s}]"
    links = Cluster.of(load(tmp_path, single).cluster).links
    assert (links[0][1], links[0][2]) == (Link(GBIT), Link(400 * GBIT))


def test_unlike_machines_meet_at_a_switch_each_at_its_own_speed(tmp_path: Path) -> None:
    cluster = Cluster.of(load(tmp_path, "machines: {dgx-a100: 2, dgx-h100: 2}").cluster)
    assert [server.name for server in cluster.servers] == ["dgx-a100-0", "dgx-a100-1", "dgx-h100-0", "dgx-h100-1"]
    assert cluster.links[0][1] == Link(200 * GBIT)
    assert cluster.links[0][2] == Link(200 * GBIT)
    assert cluster.links[2][3] == Link(400 * GBIT)


def test_own_servers_come_first_and_join_the_network_themselves(tmp_path: Path) -> None:
    cluster = (
        "devices: {old: {memory: 8 GiB, peak: 1 TFLOP/s}}\n"
        "servers: [{name: old, device: old, devices: 1}, {name: new, device: rtx-4090, devices: 1}]\n"
        "links: [{between: [old, network], bandwidth: 10 Gbit/s},"
        " {between: [new, network], bandwidth: 1 Gbit/s}]\n"
        "machines: {dgx-h100: 2}"
    )
    found = Cluster.of(load(tmp_path, cluster).cluster)
    assert [server.name for server in found.servers] == ["old", "new", "dgx-h100-0", "dgx-h100-1"]
    assert found.servers[1].device_class.memory_bytes == 24 * GIB - 7 * GIB // 4
    assert (found.links[0][2], found.links[1][2], found.links[2][3]) == (
        Link(10 * GBIT),
        Link(GBIT),
        Link(400 * GBIT),
    )
    apart = error(tmp_path, cluster.replace("{between: [old, network], bandwidth: 10 Gbit/s}, ", ""))
    assert (
        apart == "own.yaml:3: cluster: nothing joins 'old' to 'new' and 3 more; give between_servers or more links"
    )


def test_prices_of_machines_are_prices_of_their_devices(tmp_path: Path) -> None:
    assert servers(tmp_path, "machines: {p5: 1}")[0].device_class.price_per_hour == 6_880_000
    assert servers(tmp_path, "machines: {p4d: 1}")[0].device_class.price_per_hour == 2_744_706  # rounded up
    own = "machines: {p5: 1}\ndevices: {h100-sxm: {price_per_hour: 2.5}}"
    assert servers(tmp_path, own)[0].device_class.price_per_hour == 2_500_000
    mixed = "machines: {p5: 1, dgx-h100: 1}"
    assert servers(tmp_path, mixed)[0].device_class.price_per_hour == 0  # nobody asks what plans cost
    for asks in ("objective: [bottleneck, cost]", "constraints: {at_most: {cost: 100}}"):
        assert error(tmp_path, mixed, f"{TWO_BYTES}\n{asks}") == (
            "own.yaml:4: cluster.machines.p5: 'h100-sxm' has several prices for an hour (p5 6.88, dgx-h100"
            " unknown); give cluster.devices.h100-sxm.price_per_hour"
        )
    assert len(servers(tmp_path, mixed, TWO_BYTES, "cluster.devices.h100-sxm.price_per_hour=0")) == 2


@pytest.mark.parametrize(
    ("cluster", "rest", "said"),
    [
        ("machines: {dxg-h100: 2}", TWO_BYTES,
         "4: cluster.machines.dxg-h100: no machine 'dxg-h100' in the library; did you mean 'dgx-h100'?"),
        ("machines: {dgx-h10: 2}", TWO_BYTES, "4: cluster.machines.dgx-h10: no machine 'dgx-h10' in the library"),
        ("machines:\n  dgx-h100: four", TWO_BYTES,
         "5: cluster.machines.dgx-h100: expected how many, like 4, or a section like {count: 4},"
         " got 'four'"),
        ("machines: {dgx-h100: 0}", TWO_BYTES, "4: cluster.machines.dgx-h100.count: expected 1 or more, got 0"),
        ("machines: {dgx-h100: {count: 2, nmae: x}}", TWO_BYTES,
         "4: cluster.machines.dgx-h100.nmae: unknown key; did you mean 'name'?"),
        ("machines: {dgx-h100: {name: x}}", TWO_BYTES,
         "4: cluster.machines.dgx-h100.count: missing: how many machines"),
        ("machines: {dgx-h100: {count: 2, adapters: 9}}", TWO_BYTES,
         "4: cluster.machines.dgx-h100.adapters: 9 adapters of the 8 that it has"),
        ("machines: {dgx-h100: {count: 2, devices: 16}}", TWO_BYTES,
         "4: cluster.machines.dgx-h100.devices: 16 devices of the 8 that it has"),
        ("machines: {dgx-h100: {count: 2, link: {bandwidth: 450 Gb/s}}}", TWO_BYTES,
         "4: cluster.machines.dgx-h100.link.bandwidth: expected a bandwidth like '10 Gbit/s', got '450 Gb/s';"
         " did you mean '450 Gbit/s' or '450 GB/s'?"),
        ("machines: [dgx-h100]", TWO_BYTES,
         "4: cluster.machines: expected a section (names with values), got a list"),
        ("machines: {dgx-h100: 1}\narithmetic: bf61", TWO_BYTES,
         "5: cluster.arithmetic: expected 'fp64', 'fp32', 'tf32', 'bf16', 'fp16' or 'fp8', got 'bf61';"
         " did you mean 'bf16'?"),
        ("machines: {dgx-1-v100: 1}\narithmetic: bf16", TWO_BYTES,
         "4: cluster.machines.dgx-1-v100: the library has no peak of 'v100-sxm-32gb' for bf16; it has fp64,"
         " fp32, fp16. Set cluster.arithmetic to one of these, or give cluster.devices.v100-sxm-32gb.peak"),
        ("servers: [{name: n, device: tpu-v4, devices: 1}]", FOUR_BYTES,
         "4: cluster.servers[0].device: the library has no peak of 'tpu-v4' for fp32 (elements of 4 bytes);"
         " it has bf16. Set cluster.arithmetic to one of these, or give cluster.devices.tpu-v4.peak"),
        ("servers: [{name: n, device: rtx4090, devices: 1}]", TWO_BYTES,
         "4: cluster.servers[0].device: no device class 'rtx4090' in cluster.devices or the library;"
         " did you mean 'rtx-4090'?" + machines.by_hand("rtx4090")),
        ("machines: {dgx-h100: 1}\ndevices: {h100-smx: {memory: 70 GiB}}", TWO_BYTES,
         "5: cluster.devices.h100-smx: no device 'h100-smx' in the library (your own needs memory and peak);"
         " did you mean 'h100-sxm'?"),
        ("machines: {dgx-h100: 1}\ndevices: {mine: {memory: 70 GiB}}", TWO_BYTES,
         "5: cluster.devices.mine.peak: missing: peak speed of one device, like '13.4 TFLOP/s'"),
        ("machines: {dgx-h100: 2049}", TWO_BYTES,
         "4: cluster.machines.dgx-h100.count: expected 2048 or less, got 2049"),
        ("machines: {dgx-h100: 1}\nservers: [{name: dgx-h100, device: l40s, devices: 1}]", TWO_BYTES,
         "4: cluster.servers[1].name: the name 'dgx-h100' is taken by cluster.servers[0]"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_once_with_its_line(tmp_path: Path, cluster: str, rest: str, said: str) -> None:
    assert error(tmp_path, cluster, rest) == f"own.yaml:{said}"


def test_mistakes_around_machines_are_told_together(tmp_path: Path) -> None:
    rest = "training: {global_batch: 9, micro_batches: 2}\nconstraints: {pin: [{layers: a, server: dgx-h10}]}"
    lines = error(tmp_path, "machines: {dgx-h10: 2}\nservers: [{name: n, device: 4090, devices: 1}]", rest).split(
        "\n"
    )
    assert [line.split(": ")[:2] for line in lines if not line.startswith(" ")] == [
        ["own.yaml:4", "cluster.machines.dgx-h10"],
        ["own.yaml:5", "cluster.servers[0].device"],
        ["own.yaml:6", "training.micro_batches"],
    ]


MEANT = [
    ("h100", ["h100-sxm", "h100-pcie", "h100-nvl"]),
    ("H100_SXM5", ["h100-sxm"]),
    ("a100-80gb", ["a100-pcie-80gb", "a100-sxm-80gb"]),
    ("NVIDIA A40", ["a40"]),
    ("rxt-4090", ["rtx-4090"]),
]


@pytest.mark.parametrize(("word", "names"), MEANT)
def test_names_of_the_same_card_are_offered(word: str, names: list[str]) -> None:
    offered = " or ".join(f"'{name}'" for name in names)
    assert near_names(word, Library.read().devices) == f"; did you mean {offered}?"


OTHERS = [
    *Library.read().devices,
    *["l40", "l2", "gb300", "b100", "rtx-2080", "rtx-3080", "rtx-4080-ti", "a30", "mi300a", "a2", "h200-nvl"],
]


@pytest.mark.few(5)
@pytest.mark.parametrize("word", OTHERS)
def test_no_other_card_is_offered_as_a_spelling(word: str) -> None:
    others = [name for name in Library.read().devices if name != word]
    digits = re.findall(r"[a-z]*\d+[a-z]*", word)[0]
    offered = re.findall(r"'(.+?)'", near_names(word, others))
    assert all(re.findall(r"[a-z]*\d+[a-z]*", name)[0] == digits for name in offered)
    assert word not in {"l4", "l40", "gb200", "rtx-2080", "rtx-4080-ti", "mi300a", "a10"} or not offered


def test_an_unknown_card_is_told_how_to_say_it(tmp_path: Path) -> None:
    servers_ = "servers: [{name: n, device: l40, devices: 1}]"
    told = error(tmp_path, servers_)
    lines = [line.removeprefix("    ") for line in told.split("\n")[1:]]
    assert len(lines) == 3 and "did you mean" not in told
    (found,) = servers(tmp_path, "\n".join([servers_, *(line.removeprefix("  ") for line in lines[1:])]))
    assert found.device_class.memory_bytes == 24 * GIB


def test_a_device_of_the_library_keeps_a_margin_that_a_key_changes(tmp_path: Path) -> None:
    def memory(*overrides: str, rest: str = TWO_BYTES) -> tuple[int, str]:
        scenario = load(tmp_path, "machines: {dgx-h100: 1}", rest, overrides)
        return servers_of(scenario.cluster)[0].device_class.memory_bytes, scenario.kept

    facts = Library.read().devices["h100-sxm"]
    whole = facts.memory.value
    assert memory() == (
        whole - facts.kept.value,
        "no plan gets 4.500 GiB of the 79.65 GiB of h100-sxm: context, communicators, allocator"
        " (cluster.devices.h100-sxm.kept)",
    )
    assert memory("cluster.devices.h100-sxm.kept=0") == (whole, "")
    assert memory("cluster.devices.h100-sxm.kept=2 GiB")[0] == whole - 2 * GIB
    assert memory("cluster.devices.h100-sxm.memory=70 GiB") == (70 * GIB, "")  # who writes a number means it
    both = ("cluster.devices.h100-sxm.memory=70 GiB", "cluster.devices.h100-sxm.kept=1.5 B")
    assert memory(*both)[0] == 70 * GIB - 2  # what is needed is rounded up
    assert memory(rest=f"{TWO_BYTES}\nconstraints: {{memory: false}}")[1] == ""
    nothing = error(tmp_path, "machines: {dgx-h100: 1}", TWO_BYTES, "cluster.devices.h100-sxm.kept=90 GiB")
    assert "kept=90 GiB: leaves nothing: 96636764160 of the 85520809984 bytes of each device" in nothing


def test_the_note_is_in_the_notes_of_the_instance(tmp_path: Path) -> None:
    graph = nx.DiGraph(element_bytes=2, name="g")
    graph.add_node("a", layer=Layer("a", "linear", Split.MATRIX, 8, 4, 4, 4, 16))
    scenario = load(tmp_path, "servers: [{name: n, device: a100-sxm-80gb, devices: 1}]")
    assert scenario.kept and scenario.kept in scenario.instance(graph).model.notes


def test_a_scenario_without_the_library_does_not_read_it() -> None:
    def read() -> None:
        raise AssertionError("read")

    whole = (
        "devices: {a: {memory: 1 GiB, peak: 1 TFLOP/s}}\nservers: [{name: n, device: a, devices: 1}]",
        "devices: [a]\nservers: 7",
        "servers: [7]",
    )
    for cluster in whole:
        document = parse_document(text(cluster), "text")
        assert machines.completed(document, read).document is document  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "broken", ["devices: 7", "servers: 7", "servers: {a: 1}", "links: 7", "switches: 7", "devices: {}"]
)
def test_broken_sections_beside_machines_are_the_schemas_to_tell(tmp_path: Path, broken: str) -> None:
    cluster = f"machines: {{dgx-h100: 1, p4d: 1}}\n{broken}"
    if broken == "devices: {}":
        assert len(servers(tmp_path, cluster)) == 2
        return
    key = broken.split(":")[0]
    assert all(
        line.startswith(f"own.yaml:5: cluster.{key}: expected a") for line in error(tmp_path, cluster).split("\n")
    )


@pytest.mark.parametrize("name", Library.read().machines)
def test_every_machine_is_a_cluster(tmp_path: Path, name: str) -> None:
    pair = load(tmp_path, f"machines: {{{name}: 2}}")
    assert sum(server.devices for server in servers_of(pair.cluster)) == 16
    assert Cluster.of(pair.cluster).slowest


def test_names_of_alike_servers_keep_their_numbers_apart(tmp_path: Path) -> None:
    own = "devices: {a: {memory: 1 GiB, peak: 1 TFLOP/s}}\nbetween_servers: {bandwidth: 1 Gbit/s}\n"
    rows = (
        "servers: [{name: rack1, count: 2, device: a, devices: 1}, {name: node, count: 2, device: a, devices: 1}]"
    )
    assert [one.name for one in servers(tmp_path, own + rows)] == ["rack1-0", "rack1-1", "node0", "node1"]


def test_a_cluster_of_machines_is_planned(pipecut: Command, scenario: Path) -> None:
    lines = scenario.read_text(encoding="utf-8").splitlines()
    at = lines.index("cluster:")
    end = next(index for index, line in enumerate(lines) if line.startswith("training"))
    scenario.write_text(
        "\n".join([*lines[: at + 1], "  machines: {p3-16xlarge: 1}", *lines[end:]]), encoding="utf-8"
    )
    ran = pipecut("plan", scenario, "--json", "--solver", "line_dp")
    assert ran.code == 0, ran.err
    assert "p3-16xlarge" in ran.out
    ran = pipecut("plan", scenario, "--set", "cluster.arithmetic=fp8")
    assert ran.code == 2 and "the library has no peak of 'v100-sxm-16gb' for fp8; it has" in ran.err
    text = scenario.read_text(encoding="utf-8")
    tpu = "servers: [{name: n, device: tpu-v4, devices: 1}]"
    scenario.write_text(text.replace("machines: {p3-16xlarge: 1}", tpu), encoding="utf-8")
    ran = pipecut("plan", scenario)
    assert ran.code == 2 and "no peak of 'tpu-v4' for fp32 (elements of 4 bytes); it has bf16" in ran.err
