"""The JSON schema of everything that ``--json`` writes, for ``scenarios/output.schema.json``."""

from __future__ import annotations

import json

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pipecut.commands.outputs.common import Failure
from pipecut.commands.outputs.devices import DevicesOutput
from pipecut.commands.outputs.executions import ExportOutput, ProfileOutput, RunOutput, ValidateOutput
from pipecut.commands.outputs.plans import EvaluateOutput, PlanOutput, StudyOutput, TraceOutput, VerifyOutput
from pipecut.commands.outputs.reasons import DiffOutput, ExplainOutput
from pipecut.commands.outputs.runs import NothingRunOutput, SimulateOutput
from pipecut.commands.outputs.scenarios import ScenariosOutput
from pipecut.commands.outputs.tables import CompareOutput, GapTableOutput
from pipecut.commands.outputs.whatif import SensitivityOutput, SweepOutput

OUTPUTS: dict[str, tuple[type[BaseModel], ...]] = {
    "compare": (CompareOutput, GapTableOutput),
    "devices": (DevicesOutput,),
    "diff": (DiffOutput,),
    "evaluate": (EvaluateOutput,),
    "export": (ExportOutput,),
    "explain": (ExplainOutput,),
    "plan": (PlanOutput,),
    "profile": (ProfileOutput,),
    "run": (RunOutput,),
    "scenarios": (ScenariosOutput,),
    "sensitivity": (SensitivityOutput,),
    "simulate": (SimulateOutput, NothingRunOutput),
    "study": (StudyOutput,),
    "sweep": (SweepOutput,),
    "trace": (TraceOutput,),
    "validate": (ValidateOutput,),
    "verify": (VerifyOutput,),
}
"""What each command may write; every one of them may write a Failure instead."""


def schema_text() -> str:
    """Return the schema: what each command may write is under ``$defs``, by its name."""
    models = [Failure, *(model for group in OUTPUTS.values() for model in group)]
    _, schema = models_json_schema([(model, "validation") for model in models])
    for name, group in OUTPUTS.items():
        names = [model.__name__ for model in (*group, Failure)]
        schema["$defs"][name] = {"anyOf": [{"$ref": f"#/$defs/{one}"} for one in names]}
    schema["anyOf"] = [{"$ref": f"#/$defs/{name}"} for name in OUTPUTS]
    schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pipecut --json"}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
