"""The address and the pages' files: what is written is read back, and what cannot be is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_core import catalogue
from accum_core.errors import SettingError
from accum_core.records import RunConfig
from accum_core.reduction import REDUCTION_KINDS
from accum_ui import settings
from accum_ui.navigation import grouped, page_files

DEFAULTS = RunConfig.of()

configs = st.builds(
    lambda effective, n, **rest: DEFAULTS.model_copy(
        update={"effective_batch_size": effective, "micro_batch_size": effective // n, **rest}
    ),
    effective=st.just(48),
    n=st.sampled_from(settings.divisors(48)),
    norm=st.sampled_from(list(catalogue.entries("norms"))),
    model=st.sampled_from(catalogue.entries("workloads")["landcover"]["MODELS"]),
    reduction=st.sampled_from(REDUCTION_KINDS),
    learning_rate=st.sampled_from([0.03, 0.1, 1e-5, 0.0125]),
    seed=st.integers(0, 2**31 - 1),
)


@given(config=configs, base=configs)
def test_an_address_gives_back_its_settings(config: RunConfig, base: RunConfig) -> None:
    written = settings.address(config, base, "0123456789ab")
    assert settings.read(written, base) == config
    assert written.pop("run") == "0123456789ab"
    assert len(written) == sum(getattr(config, f) != getattr(base, f) for f, _ in settings.FIELDS.values())


@given(effective=st.integers(1, 5000))
def test_divisors_are_all_of_them(effective: int) -> None:
    assert settings.divisors(effective) == [n for n in range(1, effective + 1) if effective % n == 0]


@given(effective=st.integers(1, 500), micro=st.integers(1, 600))
def test_the_nearest_split_is_the_largest_micro_batch_that_fits(effective: int, micro: int) -> None:
    fits = [size for size in range(1, effective + 1) if effective % size == 0 and size <= micro]
    assert effective // settings.nearest_steps(effective, micro) == max(fits)


@pytest.mark.parametrize("updates", [1, 2, 20, 21, 150])
def test_a_short_run_has_a_warm_up_that_fits(updates: int) -> None:
    assert settings.read({"updates": str(updates)}, DEFAULTS).warmup_updates == min(20, updates - 1)


def test_a_base_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingError, match="updates"):
        settings.read({"updates": "0"}, DEFAULTS)


def test_a_page_is_one_file(tmp_path: Path) -> None:
    for name, text in {
        "0_Home.py": "",
        "10_Language_model.py": 'GROUP = "Reproduce"',
        "2_Loss_scaling.py": "",
        "notes.py": "",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = page_files(tmp_path)
    assert [(file.title, file.address, file.group) for file in files] == [
        ("Home", "home", ""),
        ("Loss scaling", "loss-scaling", "See"),
        ("Language model", "language-model", "Reproduce"),
    ]
    assert list(grouped(files)) == ["", "See", "Reproduce"]
