"""Steps that are no kernels, by op: control flow."""

from __future__ import annotations

from tcc.errors import UserError
from tcc.passes.layouts import Step
from tcc.passes.lower_control import lower_if, lower_loop, lower_scan
from tcc.passes.lower_graph import Frame

_LOWERINGS = {"if": lower_if, "loop": lower_loop, "scan": lower_scan}


def lower_node(frame: Frame, step: Step) -> None:
    """Lowers a node that is no kernel; raises UserError for one that no target runs."""
    assert step.node is not None
    lowering = _LOWERINGS.get(step.node.op.name)
    if lowering is None:
        raise UserError(f"{step.node.op.name} cannot run on this target", where=step.node.loc)
    lowering(frame, step.node)
