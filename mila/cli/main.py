"""The entry point ``mila``.

NumPy's OpenBLAS reads ``OPENBLAS_THREAD_TIMEOUT`` once, when it is loaded: for how long, as a power of two of processor
cycles, its threads go on spinning after a product. In training they would take the processors from Mila's own threads,
and a step takes up to half as long again. Decoding is one product after the other on the same threads, and to wake them
costs more than what Mila's own threads do in between. So the variable is set before anything loads NumPy.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # the module typing takes longer than all this one
if TYPE_CHECKING:
    from types import FrameType

_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
#: For commands that write text: about half a millisecond; and for all others, the least there is.
_DECODING, _SHORTEST = "20", "4"
_DECODING_COMMANDS = ("generate", "chat", "sample")
_REFUSED, _INTERRUPTED = 1, 130
#: What commands that answer in one document print where they are interrupted before their targets were read.
_DOCUMENTS = {
    "plan": '{"event": "error", "version": 1, "target": "", "message": "interrupted", "exit_code": 130}',
    "inspect": '{"event": "error", "version": 1, "targets": [], "message": "interrupted", "exit_code": 130}',
}
_DOCUMENTS["compare"] = _DOCUMENTS["inspect"]


def main() -> None:
    """Run the command line; a user's own setting of the variable stays."""
    if sys.stderr is None:  # closed: nobody hears what is wrong
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stdout is None:  # closed, and the next file that is opened would take its place
        sys.stderr.write("mila: standard output is closed: there is nowhere to print to\n")
        sys.exit(_REFUSED)
    os.environ.setdefault(_TIMEOUT, _DECODING if sys.argv[1:2] and sys.argv[1] in _DECODING_COMMANDS else _SHORTEST)
    # Python's import machinery can swallow a KeyboardInterrupt, and the command would go on.
    interrupt = signal.signal(signal.SIGINT, _leave)
    from mila.cli.app import app  # loads NumPy

    try:
        signal.signal(signal.SIGINT, interrupt)
        app(prog_name="mila")
    except KeyboardInterrupt:  # before a command could take care of it
        _leave()


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """End at once: nothing has been begun. With ``--json``, that is a document too."""
    document = _DOCUMENTS.get(sys.argv[1]) if "--json" in sys.argv[2:] else None
    try:
        if document is not None:
            os.write(sys.stdout.fileno(), f"{document}\n".encode())
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
