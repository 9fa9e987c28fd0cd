"""The measurement of one candidate: everything that a verdict about it needs."""

from collections.abc import Sequence
from dataclasses import replace

from tcc.frozen import frozen
from tcc.runtime.trials import CRASHED, HUNG, WRONG
from tcc.zipped import zip_equal

# The outcomes of a candidate. Only a `timed` candidate has rounds. `wrong`: its results differ from
# those of the analytic artifact. `refused`: it does not fit its kernel. `skipped`: its kernel takes
# too little time to be tried. The other outcomes say how the process of a trial ended.
TIMED, REFUSED, SKIPPED = "timed", "refused", "skipped"
OUTCOMES = (TIMED, WRONG, CRASHED, HUNG, REFUSED, SKIPPED)
# The phases of a sweep: the search, and two sets of rounds that confirm what the search found. The
# phase `model` times whole runs with all winners, and lists the kernels that only they have.
SEARCH, FIRST, SECOND, MODEL = PHASES = ("search", "first", "second", "model")


@frozen
class Measurement:
    """The rounds of one candidate beside its partner, or the reason why it has none.

    `target` and `cores` name the section of the lock. `site` is the digest of a kernel's site, or
    of the site of a decision above schedules, and `op` names its operation and shapes in words.
    `candidate` is the text of the choice (`CoreKernel(...)`, `join`). The partner is the analytic
    choice, for a decision in the model with the choices that won before. In the phase `model`,
    `candidate` is the digest of all choices of the model, and `site` is "" or a kernel that only
    exists with them, whose outcome is `skipped`.

    Rounds of equal index belong together: `seconds` are the seconds of all launches of the kernel
    in a run with the candidate, or of a whole run for a decision or a model, `partner` the same
    with the partner, and `peaks` the multiply-adds per second that the machine reached beside the
    round. `why` is a sentence if there are no rounds, else "".
    """

    target: str
    cores: int
    site: str
    op: str
    candidate: str
    phase: str
    outcome: str
    seconds: tuple[float, ...] = ()
    partner: tuple[float, ...] = ()
    peaks: tuple[float, ...] = ()
    why: str = ""

    def counted(self, best_peak: float, share: float) -> "Measurement":
        """Returns the measurement with the rounds in which the machine reached `share` of
        `best_peak`, in multiply-adds per second."""
        rows = zip_equal(self.seconds, self.partner, self.peaks)
        return self.with_rounds([row for row in rows if row[2] >= share * best_peak])

    def with_rounds(self, rows: Sequence[tuple[float, float, float]]) -> "Measurement":
        """Returns the measurement with other rounds: rows (seconds, partner, peak)."""
        seconds, partner, peaks = zip_equal(*rows) if rows else ((), (), ())
        return replace(self, seconds=seconds, partner=partner, peaks=peaks)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Returns partner / candidate for each round: above 1 the candidate is faster."""
        return tuple(p / s for p, s in zip_equal(self.partner, self.seconds))
