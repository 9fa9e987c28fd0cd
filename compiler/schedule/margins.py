"""The table of margins; each margin belongs to one kind of decision.

An alternative replaces the choice of a rule only if its price is lower by more than the margin, a
fraction of the price of the rule's choice. With a margin of 0 the lower price wins.
"""

from types import MappingProxyType

from tcc.frozen import frozen

_UNMEASURED = "nobody measured it"
_UNUSED = "scripts/margins on Zen 3: no choice differs between 0 and twice the margin"
_CHECK = "scripts/price_check: lower savings were about as often slower as faster when timed"
_NOISE = "scripts/margins on Zen 3: without the margin choices differ, and times within noise"


@frozen
class Margin:
    """The fraction `saves` of the rule's price, and the measurement from which it was taken."""

    name: str
    saves: float
    measurement: str


NO_MARGIN = Margin("none", 0.0, "equal prices keep the rule, lower ones win")

_ROWS = (
    Margin("knob copy", 0.03, _CHECK),
    Margin("knob panel", 0.08, _CHECK),
    Margin("knob k_block", 0.08, _CHECK),
    Margin("knob tall", 0.04, _CHECK),
    Margin("knob wide", 0.15, _CHECK),
    Margin("knob grain", 0.15, _CHECK),
    Margin("knob along", 0.08, _CHECK),
    Margin("knob stream_block", 0.08, _CHECK),
    Margin("knob turned", 0.15, _UNMEASURED),
    Margin("knob fixed", 0.08, _CHECK),
    Margin(
        "shared layout",
        1 - 1 / 1.08,
        "prices of different panels are no more precise (margin knob panel)",
    ),
    Margin("split-k", 0.05, _UNMEASURED),
    Margin("rows of MoE tiles", 0.2, _UNMEASURED),
    Margin("merge", 0.05, _UNUSED),
    Margin("storage order", 0.1, _UNUSED),
    Margin("cycles of a panel", 0.02, _UNUSED),
    Margin("derivation", 0.05, _NOISE),
    Margin("direct sums of small sizes", 0.1, _UNUSED),
    Margin("hopeless form", 1 - 1 / 1.15, _UNUSED),
    Margin("compiled again", 1 - 1 / 1.05, _UNMEASURED),
    Margin("spill", 0.5, _UNMEASURED),
    # The margin is small because a joined kernel also saves memory and code. It is not smaller,
    # because prices cannot tell smaller differences.
    Margin("join", 1 - 1 / 1.01, _NOISE),
    Margin("join on GPUs", 1 - 1 / 1.25, "chosen before any GPU had timed these prices"),
)
MARGINS = MappingProxyType({row.name: row for row in _ROWS})
