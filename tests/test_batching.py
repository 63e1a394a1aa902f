"""BatchPlan: effective batch = micro-batch x accumulation steps x world size, and what cannot be is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accum_core.batching import BatchPlan
from accum_core.errors import SettingError

sizes = st.integers(1, 40)


@pytest.mark.parametrize(
    ("effective", "micro", "world", "steps"),
    [(32, 2, 1, 16), (32, 32, 1, 1), (32, 1, 1, 32), (32, 2, 4, 4), (32, 4, 8, 1), (96, 8, 2, 6)],
)
def test_accumulation_steps_are_effective_over_micro_and_world(effective: int, micro: int, world: int, steps: int):
    plan = BatchPlan(effective, micro, world)
    assert plan.accumulation_steps == steps
    assert plan.samples_per_rank == effective // world


@given(micro=sizes, steps=sizes, world=st.integers(1, 8))
def test_the_three_sizes_multiply_to_the_effective_batch(micro: int, steps: int, world: int):
    plan = BatchPlan(micro * steps * world, micro, world)
    assert plan.accumulation_steps == steps
    assert [piece.stop - piece.start for piece in plan.slices()] == [micro] * steps


@given(micro=sizes, extra=sizes, data=st.data())
def test_slices_cover_every_sample_once_and_in_order(micro: int, extra: int, data: st.DataObject):
    plan = BatchPlan(micro + extra, micro, allow_tail=True)
    held = data.draw(st.integers(0, plan.samples_per_rank))
    pieces = plan.slices(held)
    samples = list(range(held))
    assert [sample for piece in pieces for sample in samples[piece]] == samples
    lengths = [len(samples[piece]) for piece in pieces]
    assert all(length == micro for length in lengths[:-1])
    assert all(1 <= length <= micro for length in lengths)


def test_a_ragged_window_ends_with_the_samples_that_are_left():
    assert BatchPlan(10, 4, allow_tail=True).accumulation_steps == 3
    assert BatchPlan(10, 4, allow_tail=True).slices() == (slice(0, 4), slice(4, 8), slice(8, 10))
    assert BatchPlan(8, 4).slices(5) == (slice(0, 4), slice(4, 5))
    assert BatchPlan(8, 4).slices(0) == ()


@given(effective=sizes, num_samples=st.integers(0, 200), drop=st.booleans())
def test_windows_cover_an_epoch_once_and_only_the_last_may_be_short(effective: int, num_samples: int, drop: bool):
    windows = BatchPlan(effective, 1).windows(num_samples, drop_tail=drop)
    full, left = divmod(num_samples, effective)
    assert len(windows) == full + (left > 0 and not drop)
    covered = [sample for window in windows for sample in window]
    assert covered == list(range(num_samples - (left if drop else 0)))
    assert all(len(window) == effective for window in windows[:full])


@pytest.mark.parametrize("field", ["effective_batch_size", "micro_batch_size", "world_size"])
@pytest.mark.parametrize("value", [0, -3, 2.5, "4", True, None])
def test_a_size_that_is_no_count_is_refused_by_name_and_value(field: str, value: object):
    settings: dict[str, object] = {"effective_batch_size": 8, "micro_batch_size": 2, "world_size": 1, field: value}
    with pytest.raises(SettingError, match=re.escape(f"{field} = {value!r}")) as refusal:
        BatchPlan(**settings)  # type: ignore[arg-type]
    assert refusal.value.field == field
    assert refusal.value.value == value


@given(micro=sizes, effective=sizes, world=st.integers(1, 4), tail=st.booleans())
def test_an_effective_batch_smaller_than_one_pass_is_refused_with_both_numbers(
    micro: int, effective: int, world: int, tail: bool
):
    assume(effective < micro * world)
    with pytest.raises(SettingError) as refusal:
        BatchPlan(effective, micro, world, allow_tail=tail)
    assert refusal.value.field == "effective_batch_size"
    assert {effective, micro, world} <= {int(number) for number in re.findall(r"\d+", str(refusal.value))}


@given(effective=st.integers(2, 200), micro=st.integers(2, 200), world=st.sampled_from([1, 2, 3]))
def test_what_a_refusal_offers_instead_is_accepted(effective: int, micro: int, world: int):
    effective *= world
    assume(micro * world <= effective and effective % (micro * world))
    with pytest.raises(SettingError, match=f"micro_batch_size = {micro}: .*{effective}") as refusal:
        BatchPlan(effective, micro, world)
    offered = re.search(r"use one of ([\d, ]+)", str(refusal.value))
    assert offered is not None
    for size in offered[1].strip(" ,").split(", "):
        assert BatchPlan(effective, int(size), world).accumulation_steps * int(size) * world == effective
    assert BatchPlan(effective, micro, world, allow_tail=True).samples_per_rank == effective // world


def test_ranks_that_cannot_share_a_window_evenly_are_refused_even_with_a_tail():
    with pytest.raises(SettingError, match=r"effective_batch_size = 10: .*3 ranks"):
        BatchPlan(10, 1, 3, allow_tail=True)


@pytest.mark.parametrize("held", [-1, 9])
def test_more_samples_than_a_window_holds_are_refused(held: int):
    with pytest.raises(SettingError, match=f"num_samples = {held}: .*8"):
        BatchPlan(8, 4).slices(held)
