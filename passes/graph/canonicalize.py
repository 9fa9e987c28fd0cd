"""Applies local rules until none fits, so that equal computations are written in one way.

    %a = transpose(%x) {perm=(1, 0)} ; %b = transpose(%a) {perm=(1, 0)} ; %c = mul(%b, 1)       %x

Requires nothing.  Establishes that no rule of the tables fits any node, in bodies too.  The rules
are exact: every element keeps its bits, except that a NaN may become another NaN. So `x + 0.0`
stays, because it changes the sign of a negative zero.  Two rules are not exact, but stay within the
tolerances of their functions: small powers become products, and a division inside an error function
becomes a product.
"""

from tcc.ir.graph import Graph
from tcc.ir.graph.rewrite import apply_rules
from tcc.passes.graph.rules_arithmetic import ARITHMETIC
from tcc.passes.graph.rules_functions import FUNCTIONS
from tcc.passes.graph.rules_movement import MOVEMENT
from tcc.passes.graph.rules_repetition import REPETITION

RULES = (*MOVEMENT, *ARITHMETIC, *FUNCTIONS)


def canonicalize(graph: Graph) -> Graph:
    """Returns `graph` with every rule applied wherever it fits; `graph` itself if none fits."""
    return apply_rules(graph, RULES)


def canonicalize_last(graph: Graph) -> Graph:
    """Returns `graph` as `canonicalize` does, with work moved in front of repetitions too.

    Earlier steps look for factors next to the sums whose operands they multiply.
    """
    return apply_rules(graph, (*RULES, *REPETITION))
