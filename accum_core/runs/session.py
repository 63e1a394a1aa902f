"""One run from its claim to its end: train, write records as they come, make checkpoints, leave in good order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accum_core.errors import LabError, NonFiniteLossError, StoreError
from accum_core.records import UpdateRecord
from accum_core.runs.controls import StoreControls
from accum_core.runs.lease import Lease, LeaseLostError
from accum_core.runs.patience import patiently

if TYPE_CHECKING:
    from accum_core.engine import Training

BEAT_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 0.1
CHECKPOINT_SECONDS: Final = 5.0
DIVERGED: Final = 2.0
"""Times its first loss, that of a model that knows nothing: beyond it a run counts as diverged."""

log = logging.getLogger(__name__)


def execute(lease: Lease, leaving: threading.Event) -> None:
    """Compute a claimed run until it is done, stopped, failed or lost, or until ``leaving`` is set.

    A store that cannot be written to (a full disk, a lock) is tried again for a minute, with the records kept in
    memory meanwhile.

    Raises:
        StoreError: when the store stays unwritable; the run is then left to be found and gone on with by another.
    """
    with _beating(lease):
        try:
            _compute(lease, leaving)
        except LeaseLostError:
            log.warning("run %s was given to another worker", lease.run_id)


def _compute(lease: Lease, leaving: threading.Event) -> None:
    session: _Session | None = None
    try:
        training, note = _restore(lease)
        session = _Session(lease, leaving, training)
        session.run(note)
    except (StoreError, LeaseLostError):
        raise
    except Exception as error:
        if isinstance(error, LabError):
            sentence = str(error)
        else:
            log.exception("run %s failed", lease.run_id)
            first_line = str(error).partition("\n")[0] or "no message"
            sentence = f"The training failed with {type(error).__name__}: {first_line}"
        if session is not None:
            session.flush()
        last_good = session.last_good if session is not None and isinstance(error, NonFiniteLossError) else None
        patiently(lambda: lease.fail(sentence, last_good), leaving)


def _restore(lease: Lease) -> tuple[Training, str | None]:
    """The training at its last checkpoint, or at its beginning, and a note that says which if it was begun before."""
    from accum_core.engine import Training, checkpoints

    training = Training(lease.config)
    saved = lease.checkpoint()
    if saved is None:
        return training, "begun anew, as there was no checkpoint" if lease.updates() else None
    update, file = saved
    try:
        training.load_state_dict(checkpoints.load(file))
    except StoreError:
        # The same updates are made again, so a lost checkpoint costs time and nothing else.
        log.exception("run %s begins anew", lease.run_id)
        return training, f"begun anew, as the checkpoint of update {update} cannot be read"
    return training, f"goes on from the checkpoint of update {update}"


class _Session:
    """Records and checkpoints of one training.

    A loss is measured before its update's step, so it judges the weights of the checkpoint before it: a checkpoint
    after update k is good when update k + 1 is made and its loss is not a diverged one. Until then the last good one
    stays beside it, for a run that turns out to have diverged to go back to.

    Attributes:
        last_good: the update of the last checkpoint that is known to be good, 0 for the run's beginning.
    """

    def __init__(self, lease: Lease, leaving: threading.Event, training: Training) -> None:
        self._lease = lease
        self._leaving = leaving
        self._training = training
        self._unwritten: list[UpdateRecord] = []
        self._flushed = float("-inf")
        self._saved = time.monotonic()
        self._saved_update = training.update
        held = lease.checkpoints()
        self.last_good = held[0] if len(held) > 1 else 0
        self._first_loss = lease.first_loss()

    def run(self, note: str | None) -> None:
        lease, training = self._lease, self._training
        patiently(lambda: lease.begin(training.environment(), training.update, note), self._leaving)
        controls = StoreControls(lease, self._leaving, before_waiting=self.save)
        for record in training.run(controls, self._leaving.is_set):
            self._unwritten.append(record)
            self._judge(record)
            now = time.monotonic()
            if now - self._saved >= CHECKPOINT_SECONDS:
                self.save()
            elif now - self._flushed >= FLUSH_SECONDS:
                self.flush()
        self.save()
        if controls.stopped:
            patiently(lambda: lease.finish("stopped"), self._leaving)
        elif training.update < lease.config.updates and self._leaving.is_set():
            patiently(lease.hand_back, self._leaving)
        else:
            patiently(lambda: lease.finish("done"), self._leaving)

    def flush(self) -> None:
        """Write the records that are only in memory."""
        if self._unwritten:
            patiently(lambda: self._lease.write(self._unwritten), self._leaving)
            self._unwritten.clear()
        self._flushed = time.monotonic()

    def save(self) -> None:
        """Make a checkpoint, if anything was made since the last one."""
        if self._training.update != self._saved_update or self._training.inside_window:
            update, total = self._training.update, self._lease.config.updates
            keep = self.last_good if update < total else None  # nothing can diverge any more
            patiently(lambda: self._lease.save(self._unwritten, update, self._write_file, keep), self._leaving)
            self._unwritten.clear()
            self._saved_update = update
        self._saved = self._flushed = time.monotonic()

    def _judge(self, record: UpdateRecord) -> None:
        if self._first_loss is None:
            self._first_loss = record.loss
        if record.update == self._saved_update + 1 and record.loss <= DIVERGED * self._first_loss:
            self.last_good = self._saved_update

    def _write_file(self, path: Path) -> None:
        from accum_core.engine import checkpoints

        checkpoints.save(self._training.state_dict(), path)


@contextmanager
def _beating(lease: Lease) -> Iterator[None]:
    """A thread that says every second that the worker is alive, also while an update takes long."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            try:
                lease.beat()
            except StoreError as error:
                log.warning("no heartbeat: %s", error)
            except LeaseLostError:
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
