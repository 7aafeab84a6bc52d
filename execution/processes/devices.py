"""On which device a process of a run computes: a GPU of its own with nccl between them, else the CPU with gloo."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

BOTH = "cpu:gloo,cuda:nccl"
"""Transports of a run on GPUs: small numbers on the CPU go over gloo, tensors of passes over nccl."""


def join(process: int, size: int, meeting: str = "env://") -> None:
    """Join the other processes of a run, which find each other at ``meeting``.

    GPUs are used where every process of this machine has one of its own: that of its ``LOCAL_RANK``, as torchrun
    sets it. All machines of a run must be alike in this.
    """
    local, many = int(os.environ.get("LOCAL_RANK", process)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    on_gpus = torch.cuda.is_available() and dist.is_nccl_available() and torch.cuda.device_count() >= many
    if on_gpus:
        torch.cuda.set_device(local)
    dist.init_process_group(BOTH if on_gpus else "gloo", init_method=meeting, rank=process, world_size=size)


def device_here() -> torch.device:
    """Return the device that this process computes on, once it has joined."""
    if "nccl" in str(dist.get_backend_config()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def settle(device: torch.device) -> None:
    """Wait until a device has done what it was given, so that times and transfers are those of finished work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
