"""Times at several sets of sizes decide choices."""

from __future__ import annotations

from tcc.ir.index import free_vars, symbol, var_of
from tcc.schedule.nest import typical
from tcc.schedule.open_sizes import FALLING, mean_share, other_sizes, table_sizes, together


def test_sets_keep_to_ranges_divisors_and_what_the_user_gives() -> None:
    sizes = {
        "free": symbol("a"),
        "even": symbol("b", 0, None, 2),
        "long": symbol("c", 40, 90),
        "asked": symbol("d", 0, None, 1, 32),
    }
    variables = {name: var for name, size in sizes.items() if (var := var_of(size)) is not None}
    sets = other_sizes(variables.values())
    counted = {n: [typical(s[v]) for s in sets if v in s] for n, v in variables.items()}
    assert counted == {"free": [63, 25], "even": [62, 24], "long": [44, 40], "asked": []}
    assert other_sizes([variables["asked"]]) == ()


def test_the_first_sets_of_tables_fall() -> None:
    size = symbol("a")
    (var,) = free_vars(size)
    sizes = [typical(table[var]) for table in ({var: size}, *table_sizes([var]))]
    assert sizes == [128, 63, 25, 8, 1, 256, 512]
    falling = sizes[: FALLING + 1]
    assert falling == sorted(falling, reverse=True)


def test_a_single_time_counts_at_all_sets() -> None:
    assert together([(3.0, 2.0), (1.0,)]) == (4.0, 3.0)
    assert together([(3.0,), (1.0,)]) == (4.0,)
    assert together([]) == (0.0,)


def test_a_choice_counts_by_its_mean_share() -> None:
    # The choice takes half of the time at typical sizes, but three times as long at small sizes.
    assert mean_share((5.0, 3.0), (10.0, 1.0)) == 10.0 * (0.5 + 3.0) / 2
    assert mean_share((10.0, 1.0), (10.0, 1.0)) == 10.0
    assert mean_share((4.0,), (8.0, 2.0)) == 8.0 * (0.5 + 2.0) / 2
