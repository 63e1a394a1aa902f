"""``sync_batch``: a window's gradients and running statistics are those of one full batch through nn.BatchNorm."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import TwoTerms, gradients, relative_error
from step_nets import PLACES, Net, at_once, check, conv, images, in_parts, net, product
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from accum_core.engine import accumulate_gradients, convert_norms, reference_gradient
from accum_core.engine.lockstep import in_step
from accum_core.engine.norms import sync_batch
from accum_core.engine.objectives import Contrastive, CrossEntropy, mean_loss
from accum_core.errors import SettingError
from accum_core.reduction import LossReduction

SHAPES = {"1d": (4,), "1d with length": (4, 5), "2d": (4, 3, 5), "3d": (4, 2, 3, 2)}
KINDS = {"1d": nn.BatchNorm1d, "1d with length": nn.BatchNorm1d, "2d": nn.BatchNorm2d, "3d": nn.BatchNorm3d}

pytestmark = pytest.mark.usefixtures("moving")


def mixed(norm: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Mixes the channels before and after the norm, bends what comes out, and passes the norm again."""
    before, after = nn.Linear(4, 4), nn.Linear(4, 4)

    def compute(own: Net, inputs: Tensor) -> Tensor:
        x = own.norm(own.before(inputs.movedim(1, -1)).movedim(-1, 1))
        return own.norm(own.after(torch.tanh(x).movedim(1, -1)).movedim(-1, 1) + x)

    return Net(compute, before=before, after=after, norm=norm).to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("momentum", "tracks"), [(0.3, True), (None, True), (0.1, False)])
def test_batch_norm_of_any_kind(shape: str, affine: bool, momentum: float | None, tracks: bool):
    """Mean, variance and the number of batches tracked, two calls a window; float64 to 1e-12 and float32 to 1e-5."""
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        torch.manual_seed(0)
        norm = KINDS[shape](4, eps=0.01, momentum=momentum, affine=affine, track_running_stats=tracks)
        if affine:
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
        inputs, targets = (torch.randn(7, *SHAPES[shape], dtype=dtype) * 3 + 2 for _ in range(2))
        check(mixed(norm, dtype), inputs, targets, (2, 1, 4), bound)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(any), st.sampled_from(PLACES))
def test_any_partition_of_a_batch(sizes: list[int], place: str):
    """Ragged micro-batches, of one sample, and of none."""
    torch.manual_seed(1)
    model, (inputs, factors) = net(lambda own, x: own.b2(own.d(own.b(own.c(x)).tanh()))), images(sum(sizes), 3)
    found = in_parts(model, inputs, factors, sizes, place)
    assert found.error(at_once(model, inputs, factors)) <= 1e-12


def test_a_mean_far_from_zero_costs_no_digits_of_the_variance():
    """Values of about 10000 with deviation 1, each micro-batch about another mean: the sums of squares would cancel."""
    torch.manual_seed(0)
    model = Net(lambda own, x: own.norm(x), norm=nn.BatchNorm1d(3)).double()
    inputs = torch.randn(8, 3, dtype=torch.float64) + 1e4 + torch.arange(8.0, dtype=torch.float64)[:, None]
    check(model, inputs, torch.randn(8, 3, dtype=torch.float64), (3, 3, 2), 1e-11)


def test_weights_that_differ_and_a_micro_batch_without_a_label():
    """Its samples count in the statistics, and their gradient through those is not zero."""
    torch.manual_seed(0)
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.Tanh(), conv(8, 4, 1)).double()
    inputs, labels = torch.randn(7, 3, 4, 4).double(), torch.randint(4, (7, 4, 4))
    labels[1:3], labels[5, 1:] = -100, -100
    objective = CrossEntropy(class_weights=torch.tensor([0.5, 1.0, 2.0, 4.0]))
    whole = copy.deepcopy(model)
    mean_loss(objective, whole, inputs, labels).backward()
    for place in PLACES:
        own = convert_norms(copy.deepcopy(model), "sync_batch", offload=place)
        parts = [(inputs[part], labels[part]) for part in (slice(0, 1), slice(1, 3), slice(3, 7))]
        seen: list[int] = []
        result = accumulate_gradients(own, parts, objective, after_micro_batch=seen.append)
        assert relative_error(gradients(own), gradients(whole)) <= 1e-12
        assert seen == [0, 1, 2]
        assert (result.samples, result.micro_batches) == (7, 3)
        assert result.loss == pytest.approx(mean_loss(objective, model, inputs, labels).item(), rel=1e-12)


class Silent(CrossEntropy):
    """A loss that is a plain zero, without a graph, where no label is valid."""

    def sums(self, model, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        sums = super().sums(model, inputs, targets)
        return sums if (targets != self.ignore_index).any() else {"cross_entropy": torch.zeros(())}


@pytest.mark.parametrize("place", PLACES)
def test_a_pass_whose_loss_has_no_graph_still_shapes_the_statistics(place: str):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double()
    inputs, labels = torch.randn(6, 3).double(), torch.tensor([0, 1, -100, -100, 2, 3])
    whole = copy.deepcopy(model)
    mean_loss(CrossEntropy(), whole, inputs, labels).backward()
    own = convert_norms(model, "sync_batch", offload=place)
    accumulate_gradients(own, list(zip(inputs.split(2), labels.split(2), strict=True)), Silent())
    assert relative_error(gradients(own), gradients(whole)) <= 1e-12


@pytest.mark.parametrize("frozen", ["c", "b", "c b", "c d b", "b b2"])
def test_frozen_parts(frozen: str):
    torch.manual_seed(0)
    model = net(lambda own, x: own.b2(own.d(own.b(own.c(x)).tanh())) * own.b(own.c(x)))
    for name in frozen.split():
        model.get_submodule(name).requires_grad_(False)
    check(model, *images())


def test_layers_in_evaluation_mode_use_their_running_statistics():
    torch.manual_seed(0)
    model = net(lambda own, x: own.b2(own.d(own.b(own.c(x)).tanh())))
    nn.init.uniform_(model.b.running_mean), nn.init.uniform_(model.b.running_var, 1, 2)
    model.b.eval()
    check(model, *images())


def ruled(rule: LossReduction, objective: TwoTerms, outputs: Tensor, targets: Tensor, size: int) -> Tensor:
    """The loss that a rule makes of one batch's outputs, which are cut after they are all computed."""
    parts = list(zip(outputs.split(size), targets.split(size), strict=True))
    weights = [objective.weights(of_part) for _, of_part in parts]
    loss = torch.zeros((), dtype=torch.float64)
    for name, coefficient in objective.coefficients.items():
        factors = rule.factors([weight[name] for weight in weights])
        for factor, (part, of_part) in zip(factors, parts, strict=True):
            loss = loss + coefficient * factor * objective.sums(lambda part: part, part, of_part)[name]
    return loss


@pytest.mark.parametrize("kind", ["exact", "mean_of_means", "sum_of_means", "sum"])
@pytest.mark.parametrize("tail", ["rescale", "divide_by_n"])
def test_every_rule_of_reduction_means_what_it_meant(kind, tail):
    """Terms whose weights differ, and a tail of one micro-batch in three that should be four."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double()
    inputs, targets = torch.randn(5, 3).double(), torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).double()
    rule, whole = LossReduction(kind, tail, 4), copy.deepcopy(model)
    ruled(rule, TwoTerms(), whole(inputs), targets, 2).backward()
    own = convert_norms(model, "sync_batch")
    accumulate_gradients(own, list(zip(inputs.split(2), targets.split(2), strict=True)), TwoTerms(), reduction=rule)
    assert relative_error(gradients(own), gradients(whole)) <= 1e-12


def test_the_result_is_that_of_one_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double()
    inputs, targets = torch.randn(5, 3).double(), torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).double()
    one = accumulate_gradients(copy.deepcopy(model), [(inputs, targets)], TwoTerms())
    own = convert_norms(model, "sync_batch")
    result = accumulate_gradients(own, list(zip(inputs.split(2), targets.split(2), strict=True)), TwoTerms())
    assert result.loss == pytest.approx(one.loss, rel=1e-12)
    assert {name: term.weight for name, term in result.terms.items()} == {n: t.weight for n, t in one.terms.items()}
    assert [t.loss for t in result.terms.values()] == pytest.approx([t.loss for t in one.terms.values()], rel=1e-12)
    assert (result.samples, result.micro_batches, result.skipped) == (5, 3, 0)


@pytest.mark.parametrize("place", PLACES)
def test_a_contrastive_loss_over_the_window(place: str):
    """Its representations are those of the whole window; without a pass in step each micro-batch would have its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double()
    inputs, targets = torch.randn(6, 2, 3).double(), torch.zeros(6, dtype=torch.long)
    whole = copy.deepcopy(model)
    one = accumulate_gradients(whole, [(inputs, targets)], Contrastive())
    own, seen = convert_norms(model, "sync_batch", offload=place), list[int]()
    parts = list(zip(inputs.split([1, 3, 2]), targets.split([1, 3, 2]), strict=True))
    result = accumulate_gradients(own, parts, Contrastive(), after_micro_batch=seen.append)
    assert relative_error(gradients(own), gradients(whole)) <= 1e-12
    assert result.loss == pytest.approx(one.loss, rel=1e-12)
    assert relative_error(dict(own.named_buffers()), dict(whole.named_buffers())) <= 1e-12
    assert seen == [0, 1, 2]


def test_a_model_after_a_window_is_one_that_can_be_saved_copied_and_evaluated():
    torch.manual_seed(0)
    model, (inputs, factors) = net(lambda own, x: own.b2(own.d(own.b(own.c(x)).tanh()))), images()
    keys = list(model.state_dict())
    del model.compute  # a lambda is no part of a model that is pickled
    own = convert_norms(nn.Sequential(model.c, model.b, nn.Tanh(), model.d, model.b2), "sync_batch")
    parts = zip(inputs.split(2), factors.split(2), strict=True)
    losses = in_step(own, [lambda x=x, y=y: product(own, x, y) for x, y in parts])
    copies = copy.deepcopy(own), pickle.loads(pickle.dumps(own))
    sum(losses).backward()
    assert sorted(key.split(".")[1] for key in own.state_dict()) == sorted(key.split(".")[1] for key in keys)
    plain = convert_norms(copy.deepcopy(own), "batch")
    for other in copies:
        assert other.state_dict().keys() == own.state_dict().keys()
        assert torch.equal(other.eval()(inputs), copy.deepcopy(plain).eval()(inputs))
        assert torch.equal(other.train()(inputs), copy.deepcopy(plain)(inputs))  # one batch without a window
    reference = reference_gradient(own, inputs, torch.zeros(6, 6, 6, dtype=torch.long), CrossEntropy())
    expected = F.cross_entropy(plain(inputs), torch.zeros(6, 6, 6, dtype=torch.long)).item()
    assert reference.loss == pytest.approx(expected, rel=1e-12)


def test_one_micro_batch_is_plain_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).double()
    inputs, labels = torch.randn(5, 3).double(), torch.randint(4, (5,))
    whole = copy.deepcopy(model)
    accumulate_gradients(whole, [(inputs, labels)], CrossEntropy())
    own = convert_norms(model, "sync_batch")
    accumulate_gradients(own, [(inputs, labels)], CrossEntropy())
    assert all(torch.equal(p, q) for p, q in zip(gradients(own).values(), gradients(whole).values(), strict=True))


def test_what_cannot_be_is_refused_in_a_sentence():
    model = sync_batch.convert(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)))
    parts = [(torch.randn(count, 3), torch.zeros(count, dtype=torch.long)) for count in (1, 0)]
    with pytest.raises(SettingError, match="layer 1 has one value a channel in the whole window; make it larger"):
        accumulate_gradients(model, parts, CrossEntropy())
    parts = [(torch.randn(2, 3), torch.zeros(2, dtype=torch.long))] * 2
    with pytest.raises(SettingError, match="skip_micro_batch.*sync_batch.*use skip_window"):
        accumulate_gradients(model, parts, CrossEntropy(), non_finite="skip_micro_batch")
    with pytest.raises(SettingError, match="offload = 'disk'"):
        sync_batch.convert(model, offload="disk")
    with pytest.raises(SettingError, match="passes = .*at least one"):
        in_step(model, [])
    assert all(p.grad is None for p in model.parameters())


def test_a_layer_that_would_see_its_micro_batch_alone_is_refused():
    """A model that was not converted, one beside the window's, and one whose parameters a pass exchanges."""
    plain = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    model, inputs = sync_batch.convert(copy.deepcopy(plain)), torch.randn(4, 3)
    with pytest.raises(SettingError, match="no sync_batch layer; convert it first"):
        in_step(plain, [lambda: plain(inputs)] * 2)
    other = copy.deepcopy(model)
    with pytest.raises(SettingError, match="in no model that in_step was given; give it one that holds all"):
        in_step(model, [lambda: other(model[0](inputs)[:, :3])] * 2)
    both = nn.ModuleList([model, other])
    in_step(both, [lambda: other(model(inputs)[:, :3])] * 2)
    others = {name: parameter.detach() + 1 for name, parameter in model.named_parameters()}
    before = dict(model.named_parameters())
    with pytest.raises(SettingError, match="layer 1.*functional_call.*around the window"):
        in_step(model, [lambda: functional_call(model, others, (inputs,))] * 2)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
