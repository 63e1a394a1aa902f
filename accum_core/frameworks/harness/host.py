"""Runs the trials of one framework one after the other, each in a process of its own with a time limit.

The framework is imported once, here; each trial is forked from that. Whatever a trial starts belongs to its process
group, which is killed when the trial has ended, however it did.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch._dynamo  # noqa: F401 - the first optimizer of a process imports it: here once, and not in every trial

from accum_core.conformance.results import Measured, Right, Row, Verdict
from accum_core.frameworks.harness import trial
from accum_core.provenance import code_version


def count(file: str, kinds: Sequence[str], cases: Sequence[str]) -> int:
    """How many rows ``rows`` will give."""
    module = trial.framework(file)
    return sum(trial.problem_of(module, kind, case) is not None for kind in kinds for case in cases)


def rows(file: str, kinds: Sequence[str], cases: Sequence[str], limit: float) -> Iterator[Row]:
    """The row of each kind and case that says something about the framework.

    Args:
        file: of the framework, without its ending.
        kinds: ``own`` or of the file's ``KINDS``.
        limit: seconds that a trial may take.
    """
    module = trial.framework(file)
    for kind in kinds:
        for case in cases:
            if trial.problem_of(module, kind, case) is not None:
                yield _row(module, kind, case, limit)


def _row(module: ModuleType, kind: str, case: str, limit: float) -> Row:
    measured, right = _trial(module, kind, case, limit, mended=False)
    mend, mended = "", None
    if measured.verdict != "exact":
        mend = _told(module, "MENDS", kind, case)
        if mend and hasattr(module, "train_mended"):
            mended, _ = _trial(module, kind, case, limit, mended=True)
    content = measured.model_dump()
    if measured.verdict != "exact" and (why := _told(module, "EXPLANATIONS", kind, case)):
        content["explanation"] = f"{measured.explanation} {why}"
    if mended is not None and mended.verdict == "exact" and _is_duty(module, kind, case):
        content["verdict"] = "user's duty"
    return Row(
        **content,
        framework=module.NAME,
        version=version(module),
        kind=kind,
        case=case,
        right=right,
        remark=_told(module, "REMARKS", kind, case) if measured.verdict == "exact" else "",
        mend=mend,
        mended_error=None if mended is None else mended.gradient_error,
        mended_verdict=None if mended is None else mended.verdict,
    )


def version(module: ModuleType) -> str:
    """Of the distribution that is installed, of the recipe that was read, or of this code."""
    if hasattr(module, "VERSION"):
        return str(module.VERSION)
    return importlib.metadata.version(module.DISTRIBUTION) if module.DISTRIBUTION else code_version()


def _told(module: ModuleType, constant: str, kind: str, case: str) -> str:
    sentences: dict[str, str] = getattr(module, constant, {})
    return next((sentences[key] for key in (f"{kind}/{case}", f"{kind}/*", case) if key in sentences), "")


def _is_duty(module: ModuleType, kind: str, case: str) -> bool:
    duties: Sequence[str] = getattr(module, "DUTIES", ())
    return f"{kind}/{case}" in duties or case in duties


def _trial(module: ModuleType, kind: str, case: str, limit: float, *, mended: bool) -> tuple[Measured, Right | None]:
    with tempfile.TemporaryDirectory(prefix="conformance", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=_alone, args=(module, kind, case, folder, mended))
        process.start()
        try:
            ended = _wait(process, limit)
        finally:
            _end_group(process)
        right = _read(Right, folder / trial.RIGHT)
        if (measured := _read(Measured, folder / trial.MEASURED)) is not None:
            return measured, right
        if not ended:
            said = f"It did not end within {limit:g} s and was stopped."
        else:
            said = f"Its process ended with exit code {process.exitcode} and left nothing."
        return Measured(verdict=ENDED_BADLY, explanation=said), right


ENDED_BADLY: Verdict = "refuses"


def _read(kind: Any, path: Path) -> Any:
    return kind.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else None


def _alone(module: ModuleType, kind: str, case: str, folder: Path, mended: bool) -> None:
    os.setpgrp()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    trial.run(module, kind, case, folder, mended=mended)


def _wait(process: Any, limit: float) -> bool:
    """Whether it ended in time. Should the process that started this one be gone, nobody wants the result."""
    parent, until = os.getppid(), time.monotonic() + limit
    while (left := until - time.monotonic()) > 0:
        if multiprocessing.connection.wait([process.sentinel], timeout=min(left, 1.0)):
            process.join()
            return True
        if os.getppid() != parent:
            raise SystemExit("The process that asked for this trial is gone.")
    return False


def _end_group(process: Any) -> None:
    """Kill what a trial left running, and the trial if it still runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.is_alive():
        process.kill()
    process.join()
