"""Run every benchmark, or those named, and write docs/benchmarks.md: ``python -m benchmarks [NAME ...]``.

Those named replace their own rows; each row tells when and with which version of the code it was measured.
"""

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
    """Measure, print and write the report; 1 if a bar does not hold."""
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
    REPORT.write_text(_report(results, _kept() if names else {}), encoding="utf-8")
    return 0 if all(result.holds for result in results) else 1


def _number(result: Result) -> str:
    return f"{result.value:.3g} {result.unit} ({_bar(result)})"


def _bar(result: Result) -> str:
    return "no bar" if result.bar is None else f"bar {result.bar:g} {result.unit}"


def _kept() -> dict[str, str]:
    """The rows of the report by what they measure."""
    if not REPORT.exists():
        return {}
    lines = [line for line in REPORT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[1:]}


def _report(results: list[Result], kept: dict[str, str]) -> str:
    environment = describe(torch.device("cpu"))
    measured = {
        result.name: f"| {result.name} | {result.value:.3g} {result.unit} | {_bar(result).removeprefix('bar ')} "
        f"| {'yes' if result.holds else '**no**'} | {result.detail} | {environment.date}, {environment.code_version} |"
        for result in results
    }
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "Written by `make bench` (`python -m benchmarks`), which measures everything below again; "
            "`python -m benchmarks loop` measures one file and replaces its rows. Ratios come from one process, "
            "interleaved; times depend on what else the machine does.",
            "",
            f"{environment.processor}, {environment.platform}, Python {environment.python}, torch {environment.torch}.",
            "",
            "| what | measured | bar | holds | how | when, code version |",
            "|---|---|---|---|---|---|",
            *(kept | measured).values(),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
