"""What looks like a defect of the Trainer of Hugging Face transformers, with the smallest script that shows it."""

from __future__ import annotations

DEFECTS = (
    (
        "Heads that take **kwargs and return a mean train with a gradient that is N times too large",
        "The Trainer leaves the division to every model whose forward takes **kwargs (transformers/trainer.py, "
        "training_step); BERT's sequence classifier takes them and computes a plain mean all the same "
        "(models/bert/modeling_bert.py). Of small models of 16 families, no sequence classifier and no token "
        "classifier used num_items_in_batch, and of ten masked heads ModernBERT's alone; the image classifiers of ViT, "
        "DeiT, Swin, SegFormer and DINOv2 did, those of ResNet, MobileViT and BEiT did not. Issue 47688 of "
        "huggingface/transformers is open on such heads.",
        """
import tempfile
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
data = [{"input_ids": torch.arange(4) + i, "labels": torch.tensor(i % 2)} for i in range(4)]
norms = []
for micro, steps in ((4, 1), (1, 4)):
    torch.manual_seed(0)
    config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=micro, gradient_accumulation_steps=steps, num_train_epochs=1,
        train_sampling_strategy="sequential", logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    norms.append(trainer.state.log_history[0]["grad_norm"])
print("gradient norm at N = 4:", round(norms[1], 4), "instead of", round(norms[0], 4))
""",
    ),
    (
        "GPT-2 counts a label too many for each sequence",
        "The first label of a sequence is never predicted, and the Trainer leaves it out of num_items_in_batch for "
        "models whose loss_type is one of its causal losses; it is taken from the class's name, which gives none for "
        "GPT2LMHeadModel (transformers/modeling_utils.py).",
        """
import tempfile
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1))
trainer = Trainer(model, TrainingArguments(tempfile.mkdtemp(), report_to="none", use_cpu=True))
batch = {"labels": torch.ones(2, 5, dtype=torch.long)}
_, items = trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
print("tokens that are counted:", int(items), "instead of", 2 * 4)
""",
    ),
    (
        "Iterable data without a length: a short last window's gradient goes into the next epoch's update",
        "The Trainer takes an epoch without a length for as long as max_steps, so no micro-batch is known to be the "
        "last (transformers/trainer.py, _run_epoch: step + 1 == steps_in_epoch): what a short window has summed, "
        "divided by its own number, is neither stepped nor cleared.",
        """
import tempfile
import torch
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

class Stream(IterableDataset):
    def __iter__(self):
        return iter([{"x": torch.tensor(x)} for x in (1.0, 2.0, 4.0)])

class Slope(torch.nn.Linear):
    def forward(self, x):
        return {"loss": (self.weight * x).mean()}  # its gradient is x

class Noted(TrainerCallback):
    def on_pre_optimizer_step(self, *_, model, **__):
        gradients.append(model.weight.grad.item())

gradients = []
arguments = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=1, gradient_accumulation_steps=2,
    max_steps=2, max_grad_norm=0.0, report_to="none", use_cpu=True, disable_tqdm=True)
Trainer(Slope(1, 1, bias=False), arguments, train_dataset=Stream(), callbacks=[Noted()]).train()
print("gradient of the second update, after (1 + 2) / 2:", gradients[1], "instead of", 4.0)
""",
    ),
    (
        "Mixtral's load-balancing loss is added N times",
        "The sum over tokens is divided by num_items_in_batch, and the Trainer divides no further; the load-balancing "
        "loss, a mean of each micro-batch, is added to each undivided (models/mixtral/modeling_mixtral.py, forward: "
        "loss += self.router_aux_loss_coef * aux_loss). TRL divides it by the number of micro-batches.",
        """
import tempfile
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainingArguments

sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
data = [{"input_ids": torch.arange(5), "labels": torch.arange(5)}] * 4  # equal, so that each mean is that of all

def logged(micro, steps, coefficient):
    torch.manual_seed(0)
    config = MixtralConfig(**sizes, num_key_value_heads=1, num_local_experts=4, output_router_logits=True,
        router_aux_loss_coef=coefficient)
    arguments = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=micro, num_train_epochs=1,
        gradient_accumulation_steps=steps, logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True)
    trainer = Trainer(MixtralForCausalLM(config), arguments, train_dataset=data)
    trainer.train()
    return trainer.state.log_history[0]["loss"]

parts = [logged(micro, steps, 1.0) - logged(micro, steps, 0.0) for micro, steps in ((1, 4), (4, 1))]
print("load-balancing part of the loss at N = 4:", round(parts[0], 4), "instead of", round(parts[1], 4))
""",
    ),
)
