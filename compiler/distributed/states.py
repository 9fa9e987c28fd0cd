"""States of which each rank keeps its own part, such as the heads of a KV cache.

    %present = concat(%past, %new) {axis=2}      split(1), split(1) -> split(1)

A state is an input whose memory an output updates (`--state PAST=PRESENT`).  If the node that reads
the input also computes the output, and its strategy splits both along the same axis, then the input
and the output stay split: the caller of each rank passes the rank's part, and nothing is gathered.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tcc.distributed.offers import NodeStrategies, operand_shardings, result_shardings
from tcc.distributed.sharding import Partial, Shardings, Split
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node, Value
from tcc.passes.graph.state_names import named_states

# Pairs (input name, output name).
StateNames: TypeAlias = Sequence[tuple[str, str]]


@frozen
class RankState:
    """An input `past`, the output `present` that replaces it, and the node `update` that reads the
    one and computes the other."""

    past: Value
    present: Value
    update: Node

    @property
    def result(self) -> int:
        """Returns the position of `present` among the results of `update`."""
        return self.update.outputs.index(self.present)

    def kept(self, items: NodeStrategies) -> Shardings | None:
        """Returns the shardings along all axes in which ranks keep the state if `update` has these
        strategies; None if they have the whole state."""
        operand = operand_shardings(items)[self.update.inputs.index(self.past)]
        has_part = any(isinstance(sharding, Split) for sharding in operand)
        is_sum = any(isinstance(sharding, Partial) for sharding in operand)
        is_kept = operand == result_shardings(items)[self.result]
        return operand if has_part and is_kept and not is_sum else None


def states_of(graph: Graph, names: StateNames) -> dict[Node, tuple[RankState, ...]]:
    """Returns, by their nodes, the states that ranks may share; `names` are pairs of an input's and
    an output's name, or patterns of them.

    Inputs with several readers are left out: every rank has the whole of them.
    """
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    producers, users = graph.producers(), graph.users()
    states: dict[Node, tuple[RankState, ...]] = {}
    for past_name, present_name in named_states(graph, names):
        past, present = inputs.get(past_name), outputs.get(present_name)
        if past is None or present is None or present not in producers:
            continue
        update = producers[present]
        single = users.get(past) == [update] and update.inputs.count(past) == 1
        if single and past not in graph.outputs and graph.outputs.count(present) == 1:
            states[update] = (*states.get(update, ()), RankState(past, present, update))
    return states


def kept_states(
    states: Mapping[Node, Sequence[RankState]], choice: Mapping[Node, NodeStrategies]
) -> dict[Value, Shardings]:
    """Returns the shardings of each input and output of which ranks keep parts."""
    kept: dict[Value, Shardings] = {}
    for update, items in states.items():
        for state in items:
            shardings = state.kept(choice[update])
            if shardings is not None:
                kept[state.past] = kept[state.present] = shardings
    return kept
