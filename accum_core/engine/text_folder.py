"""Text of one's own: the files ``text/*.txt`` of the data folder."""

from __future__ import annotations

from accum_core.engine.data_folder import VARIABLE, data_folder, shown
from accum_core.errors import DataError


def read_text(workload: str) -> bytes:
    """The files as they are, in the order of their names, with an empty line between two.

    Args:
        workload: named in the refusal.

    Raises:
        DataError: saying what to place where, when there is no text; naming a file that cannot be read.
    """
    folder = data_folder() / "text"
    try:
        text = b"\n\n".join(path.read_bytes() for path in sorted(folder.glob("*.txt")))
    except OSError as error:
        reason = f"{error.filename} cannot be read ({error.strerror})"
        raise DataError(f"workload {workload}: {reason}; make it a readable file, or take it away.") from None
    if not text.strip():
        raise lacking(workload, "no text")
    return text


def lacking(workload: str, found: str) -> DataError:
    """The refusal of a folder that holds too little: what was found there, and what to place."""
    folder = shown(data_folder() / "text")
    return DataError(
        f"workload {workload}: {folder} holds {found} in files named *.txt: place plain text there (UTF-8, paragraphs "
        "with an empty line between them, some hundred MB for the preset full, from FineWeb or a collection of books), "
        f"or name another data folder in {VARIABLE}."
    )
