"""Decides from records, and tells a sweep what earlier sweeps measured."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from tcc.passes.choose.ledger import ListeningLedger
from tcc.tune.lock import Home, sites_of
from tcc.tune.measurement import MODEL, Measurement
from tcc.tune.records import Record, comparable
from tcc.tune.verdicts import Verdicts, decide


def of_version(records: Sequence[Record], tcc: str) -> list[Record]:
    """Returns the records that the version `tcc` made: another one may compile other kernels."""
    return [record for record in records if record.tcc == tcc]


def best_peak_of(records: Sequence[Record], machine: str) -> float:
    """Returns the highest multiply-adds per second of a machine; 0 without records of it."""
    peaks = (max(r.measurement.peaks, default=0.0) for r in records if r.machine == machine)
    return max(peaks, default=0.0)


def earlier(
    records: Sequence[Record], home: Home, sites: Container[str], peak: float
) -> list[Measurement]:
    """Returns the measurements of a section's sites, and of whole models, for a sweep.

    Their peaks are those of a machine whose best peak is `peak`, in multiply-adds per second.
    """
    return [
        replace(m, peaks=tuple(peak * part for part in m.peaks))
        for m in comparable(records)
        if (m.target, m.cores) == home and (m.site in sites or m.phase == MODEL)
    ]


def decided(records: Sequence[Record], home: Home, sites: Container[str]) -> Verdicts:
    """Returns the verdicts about a section's sites. The order of the records has no effect if they
    are those of `read_records`."""
    return decide(earlier(records, home, sites, 1.0), home)


def model_verdicts(records: Sequence[Record], ledger: ListeningLedger) -> Iterator[Verdicts]:
    """Yields the verdicts about the sites of a model, for each section of its compile.

    `ledger` has recorded the decisions of the compile.
    """
    sites: dict[Home, set[str]] = {}
    for home, site, _ in sites_of(ledger):
        sites.setdefault(home, set()).add(site.digest)
    for home in sorted(sites):
        yield decided(records, home, sites[home])
