"""The Lab with another workload than the first: its networks, its measure, its script."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import ROOT
from streamlit.testing.v1 import AppTest

from accum_core import catalogue, export
from accum_core.records import RunConfig
from accum_core.runs.store import Store
from accum_ui import results
from accum_ui.panels import panels


def test_another_workload_brings_its_networks_and_its_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.sqlite"
    monkeypatch.setenv("ACCUMULATION_LAB_STORE", str(path))
    monkeypatch.setattr(results, "fill", lambda store: 0)
    page = AppTest.from_file(ROOT / "pages" / "1_Lab.py", default_timeout=60).run()
    (workload,) = [box for box in page.selectbox if box.label == "Workload"]
    assert workload.options == ["Land cover, 64 x 64 tiles", "Digits, 8 x 8 pixels with noise"]  # these need no GPU
    workload.select("digits").run()
    (model,) = [box for box in page.selectbox if box.label == "Model"]
    assert (model.value, model.options) == ("mlp", ["mlp", "conv"])
    assert not page.exception and not page.error
    address = {name: value if isinstance(value, str) else value[0] for name, value in page.query_params.items()}
    assert address == {"workload": "digits", "model": "mlp"}
    assert "workload.validate(model).error" in page.code[0].value
    (run,) = [button for button in page.button if button.label == "Run"]
    run.click().run()
    assert {run.config.workload for run in Store(path).runs()} == {"digits"}


@pytest.mark.parametrize("workload", catalogue.entries("workloads"))
def test_the_quality_chart_is_of_the_workloads_measure(workload: str) -> None:
    constants = catalogue.entries("workloads")[workload]
    config = RunConfig.of(workload=workload, model=constants["MODELS"][0])
    (panel,) = [panel for panel in panels(config) if panel["key"] == "quality"]
    assert {fill["y"] for fill in panel["fills"]} == {constants["MEASURE"]}
    direction = {"miou": "higher is better", "error": "lower is better", "token_loss": "lower is better"}[
        constants["MEASURE"]
    ]
    assert direction in panel["subtitle"]


def test_the_script_of_the_digits_gives_the_engines_numbers(
    capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    from accum_core.engine import train

    config = RunConfig.of(
        workload="digits", model="mlp", effective_batch_size=8, micro_batch_size=2, updates=3, warmup_updates=1
    )
    records = list(train(config))
    exec(compile(export.source("script", config), "script", "exec"), {})
    *losses, last = capsys.readouterr().out.splitlines()
    assert losses == [f"update {record.update}: loss {record.loss!r}" for record in records]
    assert records[-1].validation is not None
    assert last == f"validation error {records[-1].validation.error!r}"
