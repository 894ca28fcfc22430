"""One part, run in this process; rows go to the standard output as lines of JSON, everything else to the errors."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import IO

from benchmarks.gpu_check.parts import PART_OF
from benchmarks.gpu_check.settings import Settings


def own_standard_output() -> IO[str]:
    """Keep the standard output for rows: what libraries and tests print goes to the standard error."""
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return lines


def main() -> None:
    """``python -m benchmarks.gpu_check.run_part NAME SETTINGS``."""
    name, settings = sys.argv[1:]
    with own_standard_output() as lines:
        for row in PART_OF[name].measure(Settings.from_json(settings)):
            print(json.dumps(asdict(row)), file=lines, flush=True)


if __name__ == "__main__":
    main()
