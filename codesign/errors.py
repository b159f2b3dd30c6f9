"""The one error that a user may see: a line that says what is wrong, where, and what is allowed."""


class CodesignError(Exception):
    """Bad input, told in one line.

    Args:
        problem: what is wrong, in words.
        file: path of the offending file, relative to the workspace where possible.
        key: dotted key inside the file, or the command-line option.
        allowed: what would have been accepted.
    """

    def __init__(self, problem: str, *, file: str | None = None, key: str | None = None, allowed: str | None = None):
        self.problem, self.file, self.key, self.allowed = problem, file, key, allowed
        where = ": ".join(part for part in (file, key) if part)
        text = f"{where}: {problem}" if where else problem
        if allowed:
            text += f" (allowed: {allowed})"
        super().__init__(" ".join(text.split()))


class UnknownName(CodesignError):
    """A name that the catalog does not have."""
