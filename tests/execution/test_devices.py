"""On which devices processes compute, with GPUs that are not there; and what nccl needs, which has no tags."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from pipecut.execution.errors import StagesError
from pipecut.execution.processes import channel as devices
from pipecut.execution.running.layout import layout_of
from pipecut.formulation.schedules.interleaved import interleaved
from pipecut.formulation.schedules.one_f_one_b import one_f_one_b
from pipecut.formulation.schedules.table import Action, PipelineSchedule
from tests.execution.cases import equal_plan


@pytest.mark.parametrize(
    ("gpus", "processes_here", "backend", "device"),
    [
        (2, 2, devices.BOTH, torch.device("cuda", 1)),
        (4, 2, devices.BOTH, torch.device("cuda", 1)),
        (1, 2, "gloo", torch.device("cpu")),
        (0, 2, "gloo", torch.device("cpu")),
    ],
)
def test_gpus_are_used_where_each_process_has_one(
    monkeypatch: pytest.MonkeyPatch, gpus: int, processes_here: int, backend: str, device: torch.device
) -> None:
    joined: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda one: joined.update(device=one))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: joined["device"])
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: joined.update(more, backend=backend))
    monkeypatch.setattr(dist, "get_backend_config", lambda: joined["backend"])
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes_here))
    devices.join(3, 4)
    assert (joined["backend"], joined["rank"], joined["world_size"]) == (backend, 3, 4)
    assert devices.device_here() == device


def test_a_lane_is_a_cut_in_one_direction_from_one_process_to_another() -> None:
    layout = layout_of(equal_plan(4, (2, 1)), one_f_one_b(2, 2), 4)
    assert layout.lanes() == ((0, 0, 2), (0, 1, 2), (1, 2, 0), (1, 2, 1))
    chunks = layout_of(equal_plan(4, (1, 1, 1, 1)), interleaved(2, 2, 2), 4)
    assert chunks.lanes() == ((0, 0, 1), (1, 1, 0), (2, 0, 1), (3, 1, 0), (4, 0, 1), (5, 1, 0))


def test_micro_batches_in_another_order_need_tags() -> None:
    rows = ("0F0", "0F1", "0B1", "0B0"), ("1F1", "1B1", "1F0", "1B0")
    turned = PipelineSchedule.of_actions("turned", [[Action.parse(one) for one in row] for row in rows])
    with pytest.raises(StagesError, match="stages 0 and 1 take micro-batches in different orders"):
        layout_of(equal_plan(4, (1, 1)), turned, 4).lanes()
