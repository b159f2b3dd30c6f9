"""The report of a study: one self-contained HTML file, and every chart and table as an image or CSV.

``write_report(run_dir)`` reads ``summary.json`` and writes ``report.html`` beside it; ``export`` writes images and CSV.
Both load their libraries when called, so that importing this package costs nothing.
"""

from collections.abc import Iterable
from pathlib import Path

__all__ = ["export", "write_report"]


def write_report(run_dir: str | Path) -> Path:
    """Write ``report.html`` of a run, whole or not at all, and return its path.

    The file holds its data and the drawing library and loads nothing from anywhere.

    Args:
        run_dir: a run folder with a ``summary.json`` of schema ``codesign.study/1``.

    Raises:
        CodesignError: no summary, a damaged one, or one of another schema.
    """
    from codesign.report.page import write_report as write

    return write(Path(run_dir))


def export(run_dir: str | Path, out_dir: str | Path, formats: Iterable[str] = ("png", "svg", "csv")) -> list[Path]:
    """Write every chart (``png``, ``svg``) and every table (``csv``) of a run, and return the files' paths.

    Charts are drawn once per context and precision of the study, at its middle target; no browser is needed.

    Args:
        run_dir: a run folder with a ``summary.json``.
        out_dir: where to, made if it is not there.
        formats: some of ``png``, ``svg``, ``csv``.

    Raises:
        CodesignError: as `write_report`; an unknown format.
    """
    from codesign.report.files import export as write

    return write(Path(run_dir), Path(out_dir), formats)
