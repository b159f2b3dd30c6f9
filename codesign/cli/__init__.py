"""The command line: one program, one line per error, one JSON document per ``--json``.

Exit codes: 0 success (an infeasible request is an answer), 1 a run that failed, 2 bad input, 130 interrupted.
Nothing heavy is imported here: every command loads what it needs when it runs, so that ``--help`` answers at once.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from codesign.cli import arguments, calibrate, evaluate, importing, show, study, tools, verify
from codesign.errors import CodesignError

INTERRUPTED = 130  #: 128 and the number of SIGINT
BROKEN_PIPE = 141  #: what a shell reports for a program that SIGPIPE ended

app = typer.Typer(
    name="codesign",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\n".join(
        (
            "[bold]Begin here[/bold]",
            "  codesign list arch",
            "  codesign show gb200-nvl72",
            '  codesign evaluate --arch gb200-nvl72 --model kimi-k3 --context 128Ki --tpot "20 ms"',
            "  codesign optimize optimize/tokens-per-megawatt.toml",
            "Every command takes --json and --workspace, and shows examples with --help.",
        )
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from codesign.cli.tools import version

        typer.echo(f"codesign {version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Which machine serves the most tokens per megawatt: an MoE model, a target TPOT, and what could be built."""


for module in (show, importing, evaluate, study, verify, calibrate, tools):
    module.register(app)


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of the ``codesign`` program: runs a command and exits with its code.

    Characters that the terminal's encoding lacks are told as question marks.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code = run(args)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _hush()
    sys.exit(code)


def run(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors are told on stderr in one line.

    Args:
        args: as on the command line, without the program's name; ``sys.argv`` where None.
    """
    try:
        result = app(args, prog_name="codesign", standalone_mode=False)
    except CodesignError as error:
        return _fail(str(error), 2)
    except typer.TyperException as error:
        # Without a command the help has been printed already, and the error says nothing.
        return _fail(_usage(error), 2) if str(error) else 2
    except arguments.Interrupted as error:
        return _fail(f"interrupted; {error}", INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit):  # typer ends the program itself where the reader of its output is gone
        return _hush()
    except OSError as error:
        return _fail(f"{error.filename or 'input/output'}: {error.strerror or error}", 1)
    except Exception as error:  # a failed run is told in one line, not in a traceback
        if os.environ.get("CODESIGN_TRACEBACK"):
            raise
        return _fail(f"failed: {type(error).__name__}: {error} (CODESIGN_TRACEBACK=1 shows where)", 1)
    if result == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _usage(error: typer.TyperException) -> str:
    """What is wrong with the command line, and where its help is."""
    told = getattr(error, "format_message", None)
    text = told() if told is not None else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "codesign"
    return f"{text.rstrip('.')} (see {command} --help)"


def _fail(text: str, code: int) -> int:
    # One line, whatever an exception put into its message.
    print(f"codesign: {' '.join(text.split())}", file=sys.stderr)  # noqa: T201 - the one place that tells errors
    return code


def _hush() -> int:
    """The reader of our output is gone: let nothing more be written, not even by the interpreter as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return BROKEN_PIPE
