"""A progress bar on stderr for long work; silent where nobody watches, so that logs and pipes stay clean."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int, str], None]


@contextmanager
def bar(*, quiet: bool = False) -> Iterator[Report]:
    """Show work as it gets done.

    Args:
        quiet: show nothing, whatever stderr is.

    Yields:
        a function of (done, total, words) to call after each piece of work. Where stderr is no terminal it writes a
        line for each tenth of the work.
    """
    if quiet:
        yield _silence
    elif not sys.stderr.isatty():
        yield _lines()
    else:
        from rich import progress
        from rich.console import Console

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
            task = drawn.add_task("preparing", total=None)
            yield lambda done, total, words: drawn.update(task, completed=done, total=total, description=words)


def _silence(done: int, total: int, words: str) -> None:
    """Tell nothing."""


def _lines() -> Report:
    told = -1

    def report(done: int, total: int, words: str) -> None:
        nonlocal told
        tenth = 10 * done // total if total else 0
        if tenth > told:
            told = tenth
            print(f"{done}/{total} {words}", file=sys.stderr, flush=True)  # noqa: T201 - progress is not output

    return report
