"""Calibration to closed-loop serving points: what kernels in a server add to kernels on a bench."""

from codesign.calibration.serving.reading import read
from codesign.calibration.serving.validate import calibrate, told, validate

__all__ = ["calibrate", "read", "told", "validate"]
