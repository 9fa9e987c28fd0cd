"""The table of margins; each margin belongs to one kind of decision.

An alternative replaces the choice of a rule only if its price is lower by more than the margin, a
fraction of the price of the rule's choice. With a margin of 0 the lower price wins. A comment says
from which measurement a margin was taken.
"""

from types import MappingProxyType

from tcc.frozen import frozen


@frozen
class Margin:
    """The fraction `saves` of the rule's price."""

    name: str
    saves: float


# Equal prices keep the rule, lower ones win.
NO_MARGIN = Margin("none", 0.0)

_SAVES = {
    # scripts/price_check: lower savings were about as often slower as faster when timed.
    "knob copy": 0.03,
    "knob panel": 0.08,
    "knob k_block": 0.08,
    "knob tall": 0.04,
    "knob wide": 0.15,
    "knob grain": 0.15,
    "knob along": 0.08,
    "knob stream_block": 0.08,
    "knob fixed": 0.08,
    # Prices of different panels are no more precise (margin knob panel).
    "shared layout": 1 - 1 / 1.08,
    # Nobody measured these margins.
    "knob direction": 0.15,
    "threads": 0.15,
    "split-k": 0.05,
    "rows of MoE tiles": 0.2,
    "compiled again": 1 - 1 / 1.05,
    "spill": 0.5,
    # scripts/margins on Zen 3: no choice differs between 0 and twice the margin.
    "merge": 0.05,
    "storage order": 0.1,
    "cycles of a panel": 0.02,
    "direct sums of small sizes": 0.1,
    "hopeless form": 1 - 1 / 1.15,
    # scripts/margins on Zen 3: without the margin choices differ, and times within noise.
    "derivation": 0.05,
    # The margin is small because a joined kernel also saves memory and code. It is not smaller,
    # because prices cannot tell smaller differences.
    "join": 1 - 1 / 1.01,
    # Chosen before any GPU had timed these prices.
    "join on GPUs": 1 - 1 / 1.25,
}
MARGINS = MappingProxyType({name: Margin(name, saves) for name, saves in _SAVES.items()})
