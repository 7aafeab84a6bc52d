"""Arguments of ``pipecut explain`` and ``pipecut diff``."""

from __future__ import annotations

import argparse

PLAN = "a plan file (JSON), for example from pipecut plan --out"


def add_explained(command: argparse.ArgumentParser) -> None:
    """Add the plan that is explained; without it the best plan is searched for first."""
    command.add_argument("plan", metavar="PLAN", nargs="?", help=f"{PLAN}; without one the best plan is explained")
    command.set_defaults(take_late=_take_late)


def _take_late(arguments: argparse.Namespace, word: str) -> bool:
    """Take a scenario behind an option, where argparse took the plan for it; tell whether it is one."""
    if word.startswith("-") or arguments.plan is not None:
        return False
    arguments.plan, arguments.scenario = arguments.scenario, word
    return True


def add_compared(command: argparse.ArgumentParser) -> None:
    """Add the two plans that are compared."""
    command.add_argument("plan", metavar="PLAN", help=PLAN)
    command.add_argument("other", metavar="PLAN", help="another plan file of the same scenario")
