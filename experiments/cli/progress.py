"""The bar over all runs of an experiment, on standard error."""

from __future__ import annotations

from typing import NoReturn

import click
from tqdm import tqdm

from accum_core.runs.sweep import Progress


class Bar:
    """Progress over the updates of all runs.

    Attributes:
        done: how many runs are at their end, in words; "" before it was shown once.
    """

    def __init__(self) -> None:
        self.done = ""
        self._shown: Progress | None = None
        self._bar: tqdm[NoReturn] | None = None

    def show(self, progress: Progress) -> None:
        """Draw where the sweep stands, if that has changed."""
        if progress == self._shown:
            return
        self._shown = progress
        self.done = f"{progress.runs_done} of {progress.runs} runs"
        if self._bar is None:
            click.echo(f"{self.done} are in the store already.", err=True)
            start, total = progress.updates, progress.total_updates
            self._bar = tqdm(initial=start, total=total, unit="update", smoothing=0, dynamic_ncols=True)
        self._bar.set_description(self.done, refresh=False)
        self._bar.set_postfix_str(f"paused: {', '.join(progress.paused)}" if progress.paused else "", refresh=False)
        self._bar.n = progress.updates
        self._bar.refresh()

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
