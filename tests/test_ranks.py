"""Two and four ranks under torch.distributed (gloo) with DistributedDataParallel, each in its own process.

The expected gradients are those of one process that sees every rank's samples.
"""

from __future__ import annotations

import pytest
from over_ranks import Found, found

WORLDS = (2, 4)
MEANS = {2: ((10 + 6) / 4, (10 + 2) / 2, 4), 4: ((10 + 6 + 6 + 4) / 7, (10 + 2 + 3 + 4) / 4, 7)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Found]]:
    """What each rank of each world found."""
    return found("one_rank.py", tmp_path_factory.mktemp("ranks"), WORLDS)


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def ranks(measured: dict[int, list[Found]], world: int) -> list[Found]:
    return measured[world]


def test_s2_tokens_of_all_ranks_divide_the_sum(ranks: list[Found], world: int):
    """S2: 1 token with gradient 10 on one rank, 3 with gradient 2 on the other: 4.0, not each rank's mean, 6.0."""
    mean, _, weight = MEANS[world]
    for rank in ranks:
        assert rank["exact"] == pytest.approx({"gradient": mean, "loss": mean, "weight": weight}, rel=1e-12)
        assert rank["samples"] == weight  # over all ranks


def test_a_model_that_exchanges_nothing_itself_is_exchanged_for(ranks: list[Found]):
    """Without DistributedDataParallel around it each rank would keep its own share of the gradient."""
    for rank in ranks:
        assert rank["bare"] == pytest.approx(rank["exact"], rel=1e-12)


def test_the_mean_of_means_over_ranks_is_what_other_loops_compute(ranks: list[Found], world: int):
    """Each rank's mean, averaged over ranks; the loss told is still the weighted mean."""
    mean, of_means, weight = MEANS[world]
    for rank in ranks:
        assert rank["mean_of_means"] == pytest.approx({"gradient": of_means, "loss": mean, "weight": weight}, rel=1e-12)


def test_ragged_windows_over_ranks_equal_one_process(ranks: list[Found]):
    """Unequal numbers of samples and of micro-batches a rank, some labels ignored, classes weighted, and a rank
    without any sample: whenever the gradients are exchanged, nobody waits for ever."""
    for rank in ranks:
        assert rank["ragged"] <= 1e-12


def test_windows_drawn_at_random_equal_one_process(ranks: list[Found]):
    for rank in ranks:
        assert rank["drawn"] <= 1e-12


def test_d34_a_window_costs_one_reduction_of_the_gradients(ranks: list[Found]):
    """D34: three micro-batches a rank, one bucket: one all-reduce a window; D37: or one a micro-batch. At the end of
    a window the wrapper takes no part."""
    for rank in ranks:
        assert rank["reductions"] == [1, 3, 0]


def test_d34_forward_and_backward_are_both_told_not_to_exchange(ranks: list[Found]):
    """D34: ``no_sync`` around the backward pass alone does nothing."""
    expected = [[where, last] for last in (False, False, True) for where in ("forward", "backward")]
    for rank in ranks:
        assert rank["silence"] == expected


def test_d35_every_micro_batch_of_every_rank_counts(ranks: list[Found], world: int):
    """D35: gradients 1 and 3 on one rank, 5 and 7 on the other: 4 on both, not 3 and 5. D37: however exchanged."""
    for rank in ranks:
        assert rank["d35"] == pytest.approx([2.0 * world] * 3, rel=1e-12)  # the mean of 1, 3, ..., 4 world - 1


def test_d37_a_sharded_model_exchanges_each_micro_batch_and_holds_less(ranks: list[Found], world: int):
    """D37: once a window, every rank holds a full gradient meanwhile; after each micro-batch, its shard alone. The same
    gradient."""
    for rank in ranks:
        each, once = rank["sharded"]
        assert each["error"] <= 1e-12 >= once["error"]
        assert each["held"] == 1 / world
        assert once["held"] == 1


def test_shards_whose_ranks_make_unequal_numbers_of_passes_are_refused(ranks: list[Found]):
    """They would wait for one another for ever."""
    for rank in ranks:
        assert rank["uneven_shards"].startswith("model = ") and "as many micro-batches" in rank["uneven_shards"]


def test_a_penalty_counts_once_over_all_ranks(ranks: list[Found], world: int):
    """x of 1, 2, ... and 2s at w = 3: the gradient is the mean of x and 2 * 0.25 * 3, the loss 3 * mean + 0.25 * 9."""
    mean = (sum(range(1, world + 1)) + 2 * world) / (2 * world)
    for rank in ranks:
        for gradient, loss in rank["penalised"]:
            assert gradient == pytest.approx(mean + 1.5, rel=1e-12)
            assert loss == pytest.approx(3 * mean + 2.25, rel=1e-12)


def test_sums_of_bfloat16_parameters_over_ranks_are_float32(ranks: list[Found], world: int):
    """(256 + 1 - 255 - 1) over 2 micro-batches a rank; rounded to bfloat16 before the ranks' sum it would be 0."""
    assert [rank["bfloat16"] for rank in ranks] == [1 / (2 * world)] * world


def test_a_mean_over_ranks_does_not_overflow_in_its_sum(ranks: list[Found]):
    """Float16 ends at 65504: 60000 on every rank has the mean 60000."""
    for rank in ranks:
        assert rank["float16"] == pytest.approx([60000] * 3, rel=1e-3)


def test_a_tail_divided_by_n_is_a_share_of_all_ranks_windows(ranks: list[Found], world: int):
    """world + 1 micro-batches of gradient 1 where a full window holds 4 on each rank."""
    for rank in ranks:
        assert rank["short_tail"] == pytest.approx((world + 1) / (4 * world), rel=1e-12)


def test_a_world_that_is_not_there_is_refused(ranks: list[Found], world: int):
    for rank in ranks:
        assert "world_size = 3" in rank["refusal"]
        assert f"{world} rank" in rank["refusal"]
