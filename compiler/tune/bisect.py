"""Names the choices that make a trial fail."""

from collections.abc import Callable, Iterator, Mapping

from tcc.zipped import zip_equal

# Returns (outcome, why) of a trial with the choices; None if it does not fail.
Fails = Callable[[Mapping[str, str]], tuple[str, str] | None]


def culprits(
    choices: Mapping[str, str], failure: tuple[str, str], fails: Fails
) -> Iterator[tuple[str, str, str]]:
    """Yields (site, outcome, why) for each choice that fails.

    `choices` maps sites to texts, and a trial with all of them fails with `failure`. Each half is
    tried alone, and each half of a failing half, until a single choice fails. Choices that fail
    only together are all named.
    """
    if len(choices) == 1:
        yield next(iter(choices)), *failure
        return
    sites = sorted(choices)
    middle = len(sites) // 2
    halves = [{site: choices[site] for site in part} for part in (sites[:middle], sites[middle:])]
    failures = [fails(half) for half in halves]
    if failures == [None, None]:
        outcome, why = failure
        for site in sites:
            yield site, outcome, f"only together with {len(sites) - 1} other choices: {why}"
    for half, half_failure in zip_equal(halves, failures):
        if half_failure is not None:
            yield from culprits(half, half_failure, fails)
