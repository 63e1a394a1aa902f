"""``python -m accum_core.frameworks.harness FILE``: a framework's trials, a row of JSON a line, their number first."""

from __future__ import annotations

import argparse
import os
import signal
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from accum_core.conformance.cases import CASES
from accum_core.conformance.frameworks import frameworks, kinds
from accum_core.frameworks.harness import host


def main() -> None:
    """Print rows as soon as they are known; what the framework prints goes to standard error, or nowhere."""
    parser = argparse.ArgumentParser(prog="python -m accum_core.frameworks.harness")
    parser.add_argument("file", choices=[name for file, c in frameworks().items() for name in (file, c["NAME"])])
    parser.add_argument("--kind", action="append")
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a trial may take")
    parser.add_argument("--show", action="store_true", help="show what the framework prints")
    asked = parser.parse_args()
    file = next(file for file, c in frameworks().items() if asked.file in (file, c["NAME"]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Frameworks print where results go, so these get a way of their own.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(2 if asked.show else nowhere, 1)
    if not asked.show:
        os.dup2(nowhere, 2)
    chosen = asked.kind or list(kinds(file)), asked.case or list(CASES)
    print(host.count(file, *chosen), file=results)
    for row in host.rows(file, *chosen, asked.limit):
        print(row.model_dump_json(), file=results)


if __name__ == "__main__":
    main()
