"""The address and the pages' files: what is written is read back, and what cannot be is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accum_core import catalogue
from accum_core.batching import divisors
from accum_core.errors import SettingError
from accum_core.records import RunConfig
from accum_core.reduction import REDUCTION_KINDS
from accum_ui import lab, settings
from accum_ui.navigation import grouped, page_files

DEFAULTS = RunConfig.of()

configs = st.builds(
    lambda effective, n, **rest: DEFAULTS.model_copy(
        update={"effective_batch_size": effective, "micro_batch_size": effective // n, **rest}
    ),
    effective=st.just(48),
    n=st.sampled_from(divisors(48)),
    norm=st.sampled_from(list(catalogue.entries("norms"))),
    model=st.sampled_from(catalogue.entries("workloads")["landcover"]["MODELS"]),
    reduction=st.sampled_from(REDUCTION_KINDS),
    learning_rate=st.floats(1e-5, 100),
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
    assert divisors(effective) == [n for n in range(1, effective + 1) if effective % n == 0]


@given(effective=st.integers(1, 500), micro=st.integers(1, 600))
def test_the_nearest_split_is_the_largest_micro_batch_that_fits(effective: int, micro: int) -> None:
    fits = [size for size in range(1, effective + 1) if effective % size == 0 and size <= micro]
    assert effective // settings.nearest_steps(effective, micro) == max(fits)


@pytest.mark.parametrize("updates", [1, 2, 20, 21, 150])
def test_a_short_run_has_a_warm_up_that_fits(updates: int) -> None:
    assert settings.read({"updates": str(updates)}, DEFAULTS).warmup_updates == min(20, updates - 1)


@pytest.mark.parametrize(
    ("name", "value"), [("micro", "3"), ("effective", "-1"), ("lr", "nan"), ("lr", "1e9"), ("x", "epochs")]
)
def test_a_refusal_names_the_parameter_as_the_address_has_it(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^{name} = "):
        settings.read({name: value}, DEFAULTS)


def test_a_very_long_value_is_quoted_in_short() -> None:
    with pytest.raises(SettingError) as refusal:
        settings.read({"norm": "x" * 3000}, DEFAULTS)
    offered = ", ".join(catalogue.entries("norms"))
    assert len(str(refusal.value)) - len(offered) < 200


@pytest.mark.parametrize(
    "value", ["**bold**", "![](https://elsewhere.example/a.png)", "$x^2$", ":red[x]", "<b>", "_a_"]
)
def test_an_address_neither_formats_the_page_nor_loads_anything(value: str) -> None:
    sentence = f"norm = {value!r}: is not known; use micro_batch_size."
    written = lab.literal(sentence)
    # CommonMark: a backslash takes the meaning from the mark after it.
    assert not set("*[]$<") & set(re.sub(r"\\.", "", written))
    assert "_a_" not in written
    assert re.sub(r"\\(.)", r"\1", written).replace("\u2060", "") == sentence  # a word joiner is not seen


@pytest.mark.parametrize(
    "value",
    ["http://elsewhere.example/a", "HTTPS://elsewhere.example", "www.elsewhere.example", "me@elsewhere.example"],
)
def test_an_address_within_the_address_is_no_link(value: str) -> None:
    """GitHub Flavored Markdown makes these links wherever they stand in the text, with backslashes or without."""
    sentence = f"norm = {value!r}: is not known; use micro_batch_size."
    link = re.compile(r"https?://[-.\w]|www\.[-.\w]|[-.+\w]@[-.\w]", re.IGNORECASE)
    shown = re.sub(r"\\(.)", r"\1", lab.literal(sentence))
    assert link.search(sentence) and not link.search(shown)
    assert shown.replace("\u2060", "") == sentence


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
