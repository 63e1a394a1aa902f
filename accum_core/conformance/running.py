"""Runs the frameworks through the cases: a process a framework, two at a time, each of which starts one a trial."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from accum_core.conformance.cases import CASES
from accum_core.conformance.frameworks import frameworks, kinds, missing
from accum_core.conformance.results import Row

PROJECT: Final = Path(__file__).parents[2]
AT_ONCE: Final = 2
PATIENCE: Final = 5.0  # seconds in which a process may end by itself
LIMIT: Final = 120.0  # seconds that a trial may take
Known = Callable[[int, int], None]


@dataclass
class Trials:
    """One run of the command.

    Args:
        files: of the frameworks, by ``frameworks()``.
        cases: names of ``CASES``.
        limit: seconds that one trial may take.

    Attributes:
        lacking: frameworks that gave no row -> why and what to do, one sentence; whole when ``rows`` has ended.
    """

    files: Sequence[str]
    cases: Sequence[str] = tuple(CASES)
    limit: float = LIMIT
    lacking: dict[str, str] = field(default_factory=dict)

    def rows(self, progress: Known) -> Iterator[Row]:
        """Rows as they become known; whatever ends the iteration ends every process that it started.

        Args:
            progress: told how many rows are known, and how many there will be as far as is known.
        """
        self.lacking = {name_of(file): why for file in self.files if (why := missing(file))}
        present = [file for file in self.files if name_of(file) not in self.lacking]
        totals = {file: len(kinds(file)) * len(self.cases) for file in present}
        found: queue.SimpleQueue[tuple[str, int | Row | None]] = queue.SimpleQueue()
        processes: list[subprocess.Popen[str]] = []
        done, given = 0, dict.fromkeys(present, 0)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for file in present:
                    pool.submit(self._run, file, processes, found)
                open_files = set(present)
                while open_files:
                    file, news = found.get()
                    if isinstance(news, Row):
                        done, given[file] = done + 1, given[file] + 1
                        yield news
                    elif news is None:
                        open_files.discard(file)
                        if not given[file]:
                            self.lacking[name_of(file)] = _silent(file, totals[file])
                        totals[file] = given[file]
                    else:
                        totals[file] = news
                    progress(done, sum(totals.values()))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                _end(processes)

    def _run(
        self,
        file: str,
        processes: list[subprocess.Popen[str]],
        found: queue.SimpleQueue[tuple[str, int | Row | None]],
    ) -> None:
        """One framework's process, to its end; what it says goes into the queue, None at last."""
        chosen = [argument for case in self.cases for argument in ("--case", case)]
        process = subprocess.Popen(
            [sys.executable, "-m", "accum_core.frameworks.harness", file, *chosen, "--limit", str(self.limit)],
            cwd=PROJECT,
            env=os.environ | _alone(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is this process's, which ends the others in order
        )
        processes.append(process)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                with suppress(ValueError):
                    found.put((file, int(line)))
                    continue
                with suppress(ValidationError):
                    found.put((file, Row.model_validate_json(line)))
        finally:
            process.wait()
            process.stdout.close()
            found.put((file, None))


def name_of(file: str) -> str:
    """A framework's short name."""
    return str(frameworks()[file]["NAME"])


def in_order(rows: Sequence[Row]) -> tuple[Row, ...]:
    """By framework, kind and case, as their files have them."""
    places = {
        (name_of(file), kind): (i, j) for i, file in enumerate(frameworks()) for j, kind in enumerate(kinds(file))
    }
    cases = {case: place for place, case in enumerate(CASES)}
    return tuple(sorted(rows, key=lambda row: (places[row.framework, row.kind], cases[row.case])))


def _alone() -> Mapping[str, str]:
    """One thread each, and nothing from a network."""
    return {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


def _silent(file: str, promised: int) -> str:
    """Why a framework gave no row, of so many that it promised."""
    title = frameworks()[file]["TITLE"]
    if not promised:
        return f"{title} is not tried in these cases: name others, or leave --case away."
    return f"{title} could not be run: python -m accum_core.frameworks.harness {file} --show tells why."


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End what still runs: in order, which ends its trials too, and then by force."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
