"""Run every benchmark and write docs/benchmarks.md: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import torch

from accum_core.engine.environment import describe
from benchmarks import Result

FOLDER = Path(__file__).parent
REPORT = FOLDER.parent / "docs" / "benchmarks.md"


def main(names: list[str]) -> int:
    """Measure, print and, when everything was measured, write the report; 1 if a bar does not hold."""
    known = sorted(module.name for module in pkgutil.iter_modules([str(FOLDER)]) if not module.name.startswith("_"))
    if unknown := [name for name in names if name not in known]:
        print(f"benchmark = {unknown[0]!r}: is not known; use one of {', '.join(known)}.", file=sys.stderr)
        return 2
    results: list[Result] = []
    for name in names or known:
        print(f"{name} ...", flush=True)
        for result in importlib.import_module(f"benchmarks.{name}").measure():
            print(f"  {'holds' if result.holds else 'FAILS'}  {result.name}: {_number(result)}", flush=True)
            results.append(result)
    if not names:
        REPORT.write_text(_report(results), encoding="utf-8")
    return 0 if all(result.holds for result in results) else 1


def _number(result: Result) -> str:
    return f"{result.value:.3g} {result.unit} ({_bar(result)})"


def _bar(result: Result) -> str:
    return "no bar" if result.bar is None else f"bar {result.bar:g} {result.unit}"


def _report(results: list[Result]) -> str:
    environment = describe(torch.device("cpu"))
    rows = [
        f"| {result.name} | {result.value:.3g} {result.unit} | {_bar(result).removeprefix('bar ')} "
        f"| {'yes' if result.holds else '**no**'} | {result.detail} |"
        for result in results
    ]
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "Written by `make bench` (`python -m benchmarks`), which measures everything below again; "
            "`python -m benchmarks loop` measures one file. Ratios come from one process, interleaved; times depend "
            "on what else the machine does.",
            "",
            f"{environment.date}, {environment.processor}, {environment.platform}, Python {environment.python}, "
            f"torch {environment.torch}, code version {environment.code_version}.",
            "",
            "| what | measured | bar | holds | how |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
