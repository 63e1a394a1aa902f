"""Which framework divides how: the table of ``data/framework_divisions.json``, read and checked."""

from __future__ import annotations

from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from pydantic import HttpUrl, ValidationError

from accum_core.errors import DataError
from accum_core.records import Record
from accum_core.reduction import ReductionKind

FILE: Final = Path(__file__).parents[1] / "data" / "framework_divisions.json"
HEADINGS: Final = ("Framework", "Reduction", "What it divides by what", "A short last window", "Read in", "Thread")


class Division(Record):
    """One framework's division at one version.

    Attributes:
        framework: its name, and which of its loops.
        version: the release or commit that was read; ``source`` is where it is published.
        file: the place in it.
        reduction: the same division among ours.
        division: the division in words; ``tail`` is what becomes of a short last window.
        thread: where people discussed it; ``thread_title`` is its short name.
    """

    framework: str
    version: str
    source: HttpUrl
    file: str
    reduction: ReductionKind
    division: str
    tail: str
    thread: HttpUrl
    thread_title: str


class Divisions(Record):
    """The file: where its rows come from, and the rows."""

    provenance: str
    divisions: tuple[Division, ...]


@cache
def read(file: Path = FILE) -> Divisions:
    """The table.

    Raises:
        DataError: when the file is missing or damaged.
    """
    try:
        return Divisions.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(
            f"data file {file.name} cannot be read ({type(error).__name__}): restore data/{file.name} from the "
            "repository."
        ) from None


def counted(table: Divisions) -> str:
    """How many of the loops are exact, as a heading."""
    exact = sum(row.reduction == "exact" for row in table.divisions)
    return f"{exact} of these {len(table.divisions)} loops divide by what the window holds"


def to_html(table: Divisions) -> str:
    """The table as HTML; on a narrow screen each row becomes a block with its headings."""
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADINGS)
    body = "".join(map(_row, table.divisions))
    return f'<table class="scaling"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _row(row: Division) -> str:
    cells = (
        f"<b>{row.reduction.replace('_', ' ')}</b>",
        escape(row.division),
        escape(row.tail),
        f'<a href="{escape(str(row.source))}">{escape(row.version)}</a>, {escape(row.file)}',
        f'<a href="{escape(str(row.thread))}">{escape(row.thread_title)}</a>',
    )
    body = "".join(f'<td data-label="{name}">{cell}</td>' for name, cell in zip(HEADINGS[1:], cells, strict=True))
    return f'<tr><th scope="row">{escape(row.framework)}</th>{body}</tr>'
