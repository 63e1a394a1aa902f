"""Lists of names, one a line, as picture data sets come with them."""

from __future__ import annotations

from accum_core.engine.data_folder import data_folder
from accum_core.errors import DataError


def read_names(workload: str, file: str, form: str, remedy: str) -> list[str]:
    """The first word of each line.

    Args:
        workload: named in the refusal.
        file: of the data folder.
        form: a line as it should be, such as "NAME CLASS SPECIES BREED"; every line has as many words.
        remedy: what to place in the data folder.

    Raises:
        DataError: for a list that is empty or cannot be read, and for a line of another form, by its number.
    """
    try:
        lines = (data_folder() / file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise DataError(f"workload {workload}: the list {file} cannot be read as text; {remedy}.") from None
    for number, line in enumerate(lines, start=1):
        if len(line.split()) != len(form.split()):
            raise DataError(
                f"workload {workload}: line {number} of {file} is {line[:60]!r} and not of the form {form}; {remedy}."
            )
    if not lines:
        raise DataError(f"workload {workload}: the list {file} is empty; {remedy}.")
    return [line.split()[0] for line in lines]
