"""One import package: what lies at the top of the repository are packages inside ``pipecut``."""

from setuptools import find_packages, setup

ROOMS = (
    "formulation",
    "solvers",
    "ingest",
    "exchange",
    "report",
    "execution",
    "commands",
    "scenarios",
)

setup(
    packages=["pipecut", *(f"pipecut.{name}" for name in find_packages(include=[f"{room}*" for room in ROOMS]))],
    package_dir={"pipecut": "face", **{f"pipecut.{room}": room for room in ROOMS}},
)
