"""A run written down, to be gone on with by the same plan or another one.

A snapshot is a folder ``step-N`` with a file of every process. Each weight stands in it under the model's own
name, whole or in parts with their places, with what the optimiser keeps of it and the settings that it has for it;
so any plan of the model finds what it needs. The folder gets its name when all files are complete. The files hold
tensors, numbers and names, and are read as nothing else: no code in them is run.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pipecut.execution.dividing.moves import Indices, shortened, taking
from pipecut.execution.errors import StagesError

FORMAT = 2
_NO_SETTINGS = ("params", "param_names")
Held = Mapping[str, tuple[int, Indices]]
"""Of which weights a process has a part: dimension and indices."""


def write(folder: Path, step: int, process: int, content: Mapping[str, Any], together: Callable[[], None]) -> Path:
    """Write a process's part of a snapshot; return the snapshot's folder once all have written theirs.

    ``together`` waits for all processes. Raises OSError where a file cannot be written.
    """
    unfinished, finished = folder / f".step-{step:08d}.part", folder / f"step-{step:08d}"
    if process == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        if finished.exists():
            raise StagesError(f"{finished} is there already, of another run: name another folder, or resume it")
    together()
    with (unfinished / f"process-{process}.pt").open("wb") as file:
        torch.save({**content, "format": FORMAT, "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    together()
    if process == 0:
        unfinished.rename(finished)
    together()
    return finished


def latest(folder: Path) -> Path:
    """Return the latest snapshot in a folder. Raises StagesError where there is none."""
    found = sorted(folder.glob("step-*"), key=lambda one: (len(one.name), one.name)) if folder.is_dir() else []
    if not found:
        raise StagesError(f"{folder}: no snapshot there, expected folders step-N as --snapshot writes them")
    return found[-1]


def entry(tensor: torch.Tensor, part: tuple[int, Indices] | None) -> dict[str, Any]:
    """Return a tensor, or a part of one, with its place."""
    place = {} if part is None else {"dimension": part[0], "indices": torch.tensor(list(part[1]))}
    return {"tensor": tensor.detach(), **place}


def settings_of(optimizer: torch.optim.Optimizer | None) -> dict[torch.Tensor, dict[str, Any]]:
    """Return by parameter the settings of its group: learning rate, momentum, and what schedulers note there."""
    groups = [] if optimizer is None else optimizer.param_groups
    settings = [{key: value for key, value in group.items() if key not in _NO_SETTINGS} for group in groups]
    return {one: mine for group, mine in zip(groups, settings, strict=True) for one in group["params"]}


class Snapshot:
    """A snapshot read: ``step`` is how many steps were run."""

    def __init__(self, folder: Path) -> None:
        """Open all files; tensors are read when they are asked for. Raises StagesError."""
        self._folder = folder
        files = sorted(folder.glob("process-*.pt"))
        self._contents = [_read(file) for file in files]
        sizes = {one["processes"] for one in self._contents}
        if sizes != {len(files)}:
            raise StagesError(
                f"{folder}: processes whose files are there: {len(files)}, expected {sizes or 'some'}"
            )
        self.step: int = self._contents[0]["step"]

    def tensor(self, kind: str, name: str, part: tuple[int, Indices] | None, like: torch.Tensor) -> torch.Tensor:
        """Return a weight or buffer, or a part of it. Raises StagesError for what is not there, or unlike."""
        found = self._put_together([one[kind][name] for one in self._contents if name in one[kind]])
        if found is None:
            raise StagesError(f"{self._folder}: no {name}: the snapshot is of another model")
        wanted = list(like.shape)
        if part is not None:
            wanted[part[0]] = found.shape[part[0]] if part[1][-1] < found.shape[part[0]] else part[1][-1] + 1
        if list(found.shape) != wanted:
            raise StagesError(
                f"{self._folder}: {name} has shape {list(found.shape)}, the model's {wanted}: the snapshot is of "
                "another model"
            )
        return found if part is None else taking(found, *part)

    def optimizer_state(self, name: str, part: tuple[int, Indices] | None) -> dict[str, Any]:
        """Return what the optimiser keeps of a weight, or of a part of it; nothing where it keeps nothing."""
        rows = [one["optimizer"][name] for one in self._contents if name in one["optimizer"]]
        found: dict[str, Any] = {}
        for key in rows[0] if rows else ():
            values = [row[key] for row in rows]
            if not isinstance(values[0], dict):
                found[key] = values[0]
                continue
            whole = self._put_together(values)
            if whole is not None:
                found[key] = (whole if part is None else taking(whole, *part)).clone()
        return found

    def restore_settings(self, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
        """Give each group of an optimiser the settings that its parameters had, if any were saved.

        Raises StagesError where these differ inside a group, or are of another kind of optimiser.
        """
        saved = {name: mine for one in self._contents for name, mine in one["settings"].items()}
        for number, group in enumerate(optimizer.param_groups):
            known = [names[one] for one in group["params"] if names.get(one) in saved]
            for name in known[:1]:
                lacking = sorted(set(group) - set(saved[name]) - set(_NO_SETTINGS) - {"initial_lr"})
                if lacking:
                    raise StagesError(
                        f"{self._folder}: the settings of {name} have no {lacking[0]}: the snapshot is of another "
                        "kind of optimiser"
                    )
                group.update(saved[name])
            for name in known[1:]:
                unlike = [key for key in saved[name] if not _alike(saved[name][key], group.get(key))]
                if unlike:
                    key = unlike[0]
                    raise StagesError(
                        f"{self._folder}: group {number} of the optimiser holds {known[0]} with {key} "
                        f"{group.get(key)} and {name} with {saved[name][key]}: make the groups that the "
                        "saved run had"
                    )

    def _put_together(self, entries: list[dict[str, Any]]) -> torch.Tensor | None:
        if not entries:
            return None
        if "dimension" not in entries[0]:
            return entries[0]["tensor"]
        dimension = entries[0]["dimension"]
        indices = torch.cat([one["indices"] for one in entries])
        together = torch.cat([one["tensor"] for one in entries], dimension)
        place = {int(index): at for at, index in enumerate(indices)}
        order = [place[index] for index in sorted(place)]
        if shortened(sorted(place)) != range(len(place)):
            raise StagesError(f"{self._folder}: parts of a weight are missing")
        return taking(together, dimension, shortened(order) if order == sorted(order) else tuple(order))


def _read(file: Path) -> dict[str, Any]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise StagesError(f"{file}: no part of a snapshot ({str(error).splitlines()[0]})") from error
    wanted = {"format", "step", "processes", "weights", "buffers", "optimizer", "settings"}
    if isinstance(content, dict) and content.get("format") == FORMAT - 1:
        content = {**content, "format": FORMAT, "settings": {}}
    if not isinstance(content, dict) or not wanted <= set(content) or content["format"] != FORMAT:
        raise StagesError(f"{file}: no part of a snapshot of format {FORMAT} or {FORMAT - 1}")
    return content


def _alike(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one == other
