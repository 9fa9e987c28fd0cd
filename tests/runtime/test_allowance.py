"""The allowed errors of outputs accept right artifacts and reject wrong ones: random noise stands
for runs of a reference."""

import numpy as np
import pytest
from tcc.ir.op import Array
from tcc.runtime.allowance import allowance, judged

DRAWS, SHAPE = 12, (1, 40, 20)
NOISE = 1e-2


def noisy(
    rng: np.random.Generator, sizes: Array
) -> tuple[list[Array], list[list[Array]], list[Array]]:
    """Returns outputs, two noisy runs, and a right artifact's outputs with equal noise; `sizes` has
    the noise of each element."""
    wants = [rng.standard_normal(sizes.shape).astype(np.float32) for _ in range(DRAWS)]
    *runs, gots = (
        [(want + sizes * rng.standard_normal(sizes.shape)).astype(np.float32) for want in wants]
        for _ in range(3)
    )
    return wants, runs, gots


def drawn(seed: int) -> tuple[list[Array], list[list[Array]], list[Array]]:
    """Returns what `noisy` does, where each element has its own noise level."""
    rng = np.random.default_rng(seed)
    sizes = NOISE * np.exp(rng.standard_normal(SHAPE))
    return noisy(rng, sizes)


def verdict(wants: list[Array], runs: list[list[Array]], gots: list[Array]) -> str:
    kinds = [1.0] * len(wants)
    return judged(gots, wants, kinds, allowance(wants, runs, kinds, 0.0))[1]


@pytest.mark.parametrize("seed", range(20))
def test_errors_as_large_as_the_noise_are_right(seed: int) -> None:
    assert verdict(*drawn(seed)) == ""


@pytest.mark.parametrize("seed", range(20))
def test_a_few_large_errors_are_right(seed: int) -> None:
    """In one draw, an element that is rounded the other way moves everything that depends on it."""
    wants, runs, gots = drawn(seed)
    rng = np.random.default_rng(100 + seed)
    gots[0] = gots[0] + np.where(rng.random(SHAPE) < 0.05, np.float32(4 * NOISE), np.float32(0))
    assert verdict(wants, runs, gots) == ""


@pytest.mark.parametrize("seed", range(20))
def test_a_shift_of_one_row_by_less_than_the_noise_is_wrong(seed: int) -> None:
    wants, runs, gots = drawn(seed)
    sizes = np.std([g - w for g, w in zip(gots, wants, strict=True)], 0)
    for output in gots:
        output[:, :, 3] += 0.8 * sizes[:, :, 3]
    assert "mean error of a row" in verdict(wants, runs, gots)


@pytest.mark.parametrize("seed", range(20))
def test_shifts_of_both_signs_by_less_than_the_noise_are_wrong(seed: int) -> None:
    wants, runs, gots = drawn(seed)
    sizes = np.std([g - w for g, w in zip(gots, wants, strict=True)], 0)
    signs = np.random.default_rng(100 + seed).choice([-1, 1], SHAPE[1])
    for output in gots:
        output[:, :, 3] += signs * sizes[:, :, 3]
    assert "mean errors of a row's elements" in verdict(wants, runs, gots)


@pytest.mark.parametrize("seed", range(20))
def test_errors_that_all_draws_share_are_right(seed: int) -> None:
    """Results may depend little on the inputs. Then the errors of a weight's roundings are alike in
    all draws, and a run shows one sample of each element's noise."""
    rng = np.random.default_rng(seed)
    wants = [rng.standard_normal((1, 1000)).astype(np.float32) for _ in range(DRAWS)]
    *runs, gots = (
        [(want + error).astype(np.float32) for want in wants]
        for error in NOISE * rng.standard_normal((3, 1, 1000))
    )
    assert verdict(wants, runs, gots) == ""


def appended(seed: int) -> tuple[list[Array], list[list[Array]], list[Array]]:
    """Returns what `noisy` does, for an output that appends one row with noise to an input."""
    rng = np.random.default_rng(seed)
    shape = (3, 40, 20)
    sizes = NOISE * np.exp(rng.standard_normal(shape)) * (np.arange(40) == 39)[:, None]
    return noisy(rng, sizes)


@pytest.mark.parametrize("seed", range(60))
def test_errors_of_the_only_row_with_noise_are_right(seed: int) -> None:
    """Two runs have two mean errors of this row, and both may be small by chance."""
    assert verdict(*appended(seed)) == ""


@pytest.mark.parametrize("seed", range(60))
def test_errors_that_move_all_rows_together_are_right(seed: int) -> None:
    """A norm's scale moves all elements of an output by one factor, which is random in a draw."""
    wants, runs, gots = drawn(seed)
    rng = np.random.default_rng(100 + seed)
    for outputs in (*runs, gots):
        for output in outputs:
            output += np.float32(4 * NOISE * rng.standard_normal())
    assert verdict(wants, runs, gots) == ""


@pytest.mark.parametrize("seed", range(20))
def test_a_shift_of_the_only_row_with_noise_is_wrong(seed: int) -> None:
    wants, runs, gots = appended(seed)
    sizes = np.std([g - w for g, w in zip(gots, wants, strict=True)], 0)
    for output in gots:
        output += 0.4 * sizes
    assert "row" in verdict(wants, runs, gots)


def test_shapes_that_no_run_has_are_compared_with_the_largest_noise() -> None:
    wants, runs, _ = drawn(0)
    allowed = allowance(wants, runs, [1.0] * DRAWS, 0.0)
    longer = [np.concatenate([reference, reference]) for reference in wants[:2]]
    for error, right in ((NOISE, True), (1e3 * NOISE, False)):
        gots = [other + np.float32(error) for other in longer]
        score, why = judged(gots, longer, [1.0] * 2, allowed)
        assert score == pytest.approx(error / allowed.scale, rel=1e-2)
        assert (why == "") is right


def test_integers_that_no_noise_changes_are_equal() -> None:
    wants = [np.arange(6).reshape(2, 3)] * 3
    assert verdict(wants, [wants, wants], wants) == ""
    assert "allowed" in verdict(wants, [wants, wants], [wants[0], wants[1], wants[2] + 1])
