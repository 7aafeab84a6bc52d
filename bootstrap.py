"""Set pipecut up and run it: ``python3 bootstrap.py plan`` or ``python3 bootstrap.py test``.

Needs nothing but Python 3.11 or later. Both commands make the virtual environment ``.venv`` beside this file if
it is missing or broken, install pipecut and the literature beside it into it once (again only after requirements
have changed), and then run. Either may come first; a set-up that was interrupted is begun again by the next run.

``plan`` plans the first scenario, ``test`` runs the tests; further arguments are passed on::

    python3 bootstrap.py plan --json
    python3 bootstrap.py test -k scenarios
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

# Older Pythons must be able to read this file as far as the message that they are too old.
OLDEST_PYTHON = (3, 11)
ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PROGRAMS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = PROGRAMS / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / ".pipecut-installed.json"
"""What is installed: written last, so that its presence means a complete set-up."""
STARTED = VENV / ".pipecut-installing"
"""Present while pip works: if it is found at the start, that installation was cut short."""
SCENARIO = "scenarios/pipepar/vgg16.yaml"
EXTRAS = {"plan": ("torch",), "test": ("torch", "dev", "docs", "notebook", "png")}
BESIDE = "literature"
"""The folder of the distribution that is installed beside pipecut: planners of papers, and their studies."""
ON_ALL_CORES = ("-n", "auto", "--dist", "worksteal")
"""How the tests run where nothing is said of them."""
FAILED = 2


def main(arguments: list[str]) -> int:
    """Set up what the command needs and run it; return the exit code."""
    if sys.version_info < OLDEST_PYTHON:
        return _fail(
            f"pipecut needs Python {_dotted(OLDEST_PYTHON)} or later; {sys.executable} is Python "
            f"{_dotted(sys.version_info[:2])}. Try: python3.11 bootstrap.py plan"
        )
    if not arguments or arguments[0] not in EXTRAS:
        return _fail(f"usage: python3 bootstrap.py {{{','.join(EXTRAS)}}} [arguments]")
    command, rest = arguments[0], arguments[1:]
    try:
        set_up(EXTRAS[command])
    except (OSError, subprocess.CalledProcessError) as error:
        return _fail(f"the set-up of {VENV} failed: {error}\nRun the same command again once that is mended.")
    except KeyboardInterrupt:
        return _fail("\nThe set-up was interrupted; run the same command again to finish it.")
    return _run(command_line(command, rest))


def command_line(command: str, rest: list[str]) -> list[str]:
    """Return what a command runs inside the environment."""
    if command == "plan":
        return [str(PROGRAMS / "pipecut"), "plan", SCENARIO, *rest]
    return [str(PYTHON), "-m", "pytest", "-q", *(rest or ON_ALL_CORES)]


def set_up(extras: tuple[str, ...]) -> None:
    """Make the environment and install pipecut with these extras, unless that is done already.

    Raises CalledProcessError if the environment cannot be made or pip fails, and OSError.
    """
    installed = installed_extras()
    if installed is not None and set(extras) <= installed:
        return
    wanted = sorted(set(extras) | (installed or set()))
    if STARTED.exists() or not _works():
        _say(f"making {VENV}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True, stdout=sys.stderr)
    _say(f"installing pipecut[{','.join(wanted)}] into {VENV}; this happens once and takes a minute or two")
    STARTED.touch()
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    # Python compiles what is imported, and keeps it; to compile all of torch takes as long as all else here.
    pip += [] if sys.dont_write_bytecode else ["--no-compile"]
    try:
        subprocess.run(
            [
                *pip,
                "--editable",
                f".[{','.join(wanted)}]",
                "--editable",
                BESIDE,
                "--constraint",
                "constraints.txt",
            ],
            check=True,
            cwd=ROOT,
            stdout=sys.stderr,
        )
    except subprocess.CalledProcessError as error:
        if error.returncode == 1:  # pip gave up in good order, for example without a network
            STARTED.unlink()
        raise
    link_rooms()
    STAMP.write_text(json.dumps({"key": key(), "extras": wanted}), encoding="utf-8")
    STARTED.unlink()


def link_rooms() -> None:
    """Lay the rooms out as the package that they are, in links, for type checkers, which follow no import hook."""
    links = ROOT / ".links" / "pipecut"
    links.mkdir(parents=True, exist_ok=True)
    places: dict[str, Path] = {}
    for init in ROOT.glob("*/__init__.py"):
        room = init.parent
        places |= {path.name: path for path in room.glob("*.py")} if room.name == "face" else {room.name: room}
    for left in [link for link in links.iterdir() if link.is_symlink() and link.name not in places]:
        left.unlink()
    for name, place in places.items():
        with contextlib.suppress(OSError):  # a file system without links: only type checkers miss them
            (links / name).symlink_to(os.path.relpath(place, links))


def installed_extras() -> set[str] | None:
    """Return the extras of a complete installation of this very project; None if there is none."""
    try:
        found = json.loads(STAMP.read_text(encoding="utf-8"))
        complete = found["key"] == key() and PYTHON.exists() and not STARTED.exists()
        return set(found["extras"]) if complete else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def key() -> str:
    """Return what an installation depends on, as a hash: requirements, pins, and where the project lies."""
    parts = [
        (ROOT / name).read_bytes() for name in ("pyproject.toml", f"{BESIDE}/pyproject.toml", "constraints.txt")
    ]
    return hashlib.sha256(b"\0".join([*parts, str(ROOT).encode()])).hexdigest()


def _works() -> bool:
    """Tell whether the environment has a Python that is new enough, and pip."""
    if not PYTHON.exists():
        return False
    probe = f"import pip, sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    return subprocess.run([str(PYTHON), "-c", probe], check=False, stderr=subprocess.DEVNULL).returncode == 0


def _run(command: list[str]) -> int:
    """Become the command, so that Ctrl-C and the exit code are its own (Windows: run it)."""
    os.chdir(ROOT)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "nt":
            return subprocess.run(command, check=False).returncode
        os.execv(command[0], command)  # noqa: S606 (no shell is wanted)
    except OSError as error:
        return _fail(f"{command[0]}: {error.strerror}. Delete {VENV} and run the same command again.")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def _fail(message: str) -> int:
    _say(message)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
