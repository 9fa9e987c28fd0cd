"""Applies local rules until none fits, so that each meaning has one spelling.

    %a = transpose(%x) {perm=(1, 0)} ; %b = transpose(%a) {perm=(1, 0)} ; %c = mul(%b, 1)       %x

Requires nothing.  Establishes that no rule of the tables fits any node, in bodies too.  The rules
are exact: every element keeps its bits (a NaN stays a NaN), so `x + 0.0` stays, as it changes the
sign of a zero.  Only small powers become products, and quotients in an error function, within the
tolerances of these functions.
"""

from tcc.ir.graph import Graph
from tcc.ir.graph.rewrite import apply_rules
from tcc.passes.graph.rules_arithmetic import ARITHMETIC
from tcc.passes.graph.rules_functions import FUNCTIONS
from tcc.passes.graph.rules_movement import MOVEMENT

RULES = (*MOVEMENT, *ARITHMETIC, *FUNCTIONS)


def canonicalize(graph: Graph) -> Graph:
    """Returns `graph` with every rule applied wherever it fits; itself where none does."""
    return apply_rules(graph, RULES)
