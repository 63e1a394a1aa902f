"""The exported notebook, run by a kernel as a reader runs it, gives the engine's losses and validations to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from accum_core.engine import train
from accum_core.export import source
from accum_core.records import RunConfig

ROOT = Path(__file__).parent.parent
SHORT = {
    "workload": "digits", "model": "conv", "effective_batch_size": 8, "micro_batch_size": 2, "updates": 4,
    "warmup_updates": 2,
}  # fmt: skip

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # The kernel's own: sockets that its event loop closes late.
    pytest.mark.filterwarnings("ignore"),
]


def outputs(book: nbformat.NotebookNode, kind: str) -> list[Any]:
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs if output.output_type == kind]


def test_a_notebook_runs_from_the_root_and_gives_the_engines_curve() -> None:
    config = RunConfig.of(**SHORT, validate_every=3, seed=5)
    book = nbformat.reads(source("notebook", config), as_version=4)
    NotebookClient(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    text = "".join(stream["text"] for stream in outputs(book, "stream") if stream["name"] == "stdout")
    lines = []
    for record in train(config):
        lines.append(f"update {record.update}: loss {record.loss!r}")
        if record.validation is not None:
            lines.append(f"validation error {record.validation.error!r}")
    assert text.splitlines() == lines
    assert sum("validation" in line for line in lines) == 2  # after updates 3 and 4
    drawn = [shown["data"]["application/vnd.plotly.v1+json"] for shown in outputs(book, "display_data")]
    titles = [figure["layout"]["title"]["text"] for figure in drawn]
    assert len(titles) == 3 and "learning rate" in titles[0] and titles[2].startswith("Validation error after 4")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "looks across the samples of a micro-batch"),
        ({"norm": "group"}, "does not look across samples"),
        ({"norm": "sync_batch"}, "advance together below"),
        ({"reduction": "mean_of_means"}, "only where all micro-batches hold as many"),
        ({"shrink_on_out_of_memory": True}, "shrink_on_out_of_memory is not carried over"),
        ({"workload": "pydoc_blocks", "model": "gpt"}, "LayerNorm looks at one position of one sample"),
    ],
    ids=str,
)
def test_prose_is_of_the_runs_settings(settings: dict[str, Any], words: str) -> None:
    book = nbformat.reads(source("notebook", RunConfig.of(**{**SHORT, **settings})), as_version=4)
    nbformat.validate(book)
    prose = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    assert words in prose and "{" not in prose


def test_one_run_gives_one_file() -> None:
    config = RunConfig.of(**SHORT)
    first, second = (source("notebook", config) for _ in range(2))
    assert first == second
    assert json.loads(first)["nbformat"] == 4
