"""Fit of the kernel constants to measured tables, their uncertainty, and error on measurements."""
