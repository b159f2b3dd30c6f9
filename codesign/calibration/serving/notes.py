"""What a prediction of a serving point took for granted: notes that stand beside it."""

from collections.abc import Iterable

from codesign.calibration.serving.predict import Predicted
from codesign.calibration.serving.terms import Shifts, generation_of


def inherited(chip: str, vendor: str, shifts: Shifts, *, without: str | None = None) -> str:
    """Whose constants a chip without measurements of its own has, in words; empty where it has its own.

    Args:
        chip, vendor: as the catalog has them, the vendor in small letters.
        shifts: numbers of the fit.
        without: a chip whose own numbers do not count.
    """
    known = {(s.level, s.owner) for s in shifts.shifts}
    if chip != without and ("chip", chip) in known:
        return ""
    generation = generation_of(chip)
    if ("generation", generation) in known and generation != chip:
        whose = f"its generation, {generation}"
    elif ("vendor", vendor) in known:
        whose = f"its vendor, {vendor}"
    else:
        whose = "all chips measured"
    return f"{chip} has no measurements of its own, constants are those of {whose}"


def foreign(framework: str, vendor: str, shifts: Shifts) -> str:
    """That a framework was not measured on a vendor's chips; empty where it was."""
    if any(s.level == "framework" and s.owner == f"{framework} {vendor}" for s in shifts.shifts):
        return ""
    return f"framework {framework} was not measured on {vendor} chips, overheads are the mean of all"


def assumed(found: Iterable[Predicted], shifts: Shifts, *, without: str | None = None) -> dict[int, tuple[str, ...]]:
    """Notes by number of the line in the table; lines that took nothing for granted are left out.

    Args:
        found: predictions.
        shifts: numbers of the fit that made them.
        without: a chip that was left out of it.
    """
    notes: dict[int, tuple[str, ...]] = {}
    for p in found:
        points = p.points
        told = zip(points.lines, points.notes, points.chips, points.vendors, points.frameworks, strict=True)
        for i, own, chip, vendor, framework in told:
            more = inherited(chip, vendor, shifts, without=without), foreign(framework, vendor, shifts)
            if mine := tuple(note for note in (*str(own).split("; "), *more) if note):
                notes[int(i)] = mine
    return notes
