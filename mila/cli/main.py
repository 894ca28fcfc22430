"""The entry point ``mila``.

NumPy's OpenBLAS reads ``OPENBLAS_THREAD_TIMEOUT`` once, when it is loaded. At its default, BLAS threads go on spinning
after every matrix product and take the processors from Mila's own threads; a training step takes up to half as long
again. So the variable is set before NumPy is loaded, and where NumPy came first, the process starts over.
"""

from __future__ import annotations

import os
import sys

_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"


def main() -> None:
    """Run the command line; a user's own setting of the variable stays."""
    if _TIMEOUT not in os.environ:
        os.environ[_TIMEOUT] = "4"
        if "numpy" in sys.modules and os.name == "posix":
            if sys.stdout is not None:
                sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    try:
        from mila.cli.app import app  # loads NumPy

        app(prog_name="mila")
    except KeyboardInterrupt:  # before a command could take care of it
        sys.exit(130)


if __name__ == "__main__":
    main()
