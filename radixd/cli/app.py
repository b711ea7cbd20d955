"""The entry point `radixd`: runs the command that is named and turns its errors into one line."""

import os
import sys

from protos.errors import RadixdError


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the value is the exit code.

    0 done, 1 refused or failed with one line on standard error, 2 wrong usage, 130 interrupted.
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        return _run(words)
    except RadixdError as error:
        _complain(str(error))
        return 1
    except BrokenPipeError:
        # The reader has left, as in `radixd tree | head`; the interpreter must not flush again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        _complain(error.strerror or str(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _run(words: list[str]) -> int:
    if words[:1] == ["up"]:
        # Alone: what the other commands import would delay every start.
        from radixd.cli.up import run_services

        return run_services(words[1:])
    from radixd.cli.commands import BENCHES, app

    two_words = " ".join(words[:2])
    if two_words in BENCHES:
        words = [two_words, *words[2:]]
    app(args=words, prog_name="radixd")
    return 0


def _complain(problem: str) -> None:
    from radixd.cli.terminal import err

    err.print(f"radixd: {problem}", style="red", markup=False, soft_wrap=True)
