"""Training and sampling loops of other people's libraries, with compiled models in them."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.libraries.harness import Case, check_program, named, table
from tests.libraries.language import Sentences, llama

CASES, case = table()
pytestmark = pytest.mark.libraries
QUIET = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
FIT = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def batches() -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(20, 8), torch.randint(0, 2, (20,)))
    return torch.utils.data.DataLoader(data, batch_size=6)


def state(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


@case("accelerate", "requests", "psutil", graphs=2)
def trainer(compiler):
    from transformers import Trainer, TrainingArguments
    model = llama()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, max_steps=5, per_device_train_batch_size=2, **QUIET)
        data = Sentences()
        run = Trainer(model=compiler(model), args=arguments, train_dataset=data)
        losses = [run.train().training_loss, run.evaluate(data)["eval_loss"]]
    return [torch.tensor(losses), *state(model)]


@case("accelerate", "requests", "psutil")
def trainer_with_checkpoints(compiler):
    from transformers import Trainer, TrainingArguments
    model = llama()
    model.forward = compiler(model.forward)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            gradient_checkpointing=True, label_smoothing_factor=0.1, max_grad_norm=0.5, **QUIET)
        loss = Trainer(model=model, args=arguments, train_dataset=Sentences()).train().training_loss
    return [torch.tensor(loss), *state(model)]


@case("accelerate", "psutil", graphs=2)
def accelerate(compiler):
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    compiled, optimizer, data = accelerator.prepare(compiler(model), optimizer, batches())
    for x, y in data:
        with accelerator.accumulate(compiled):
            accelerator.backward(F.cross_entropy(compiled(x), y))
            accelerator.clip_grad_norm_(compiled.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return state(model)


def lit(compiler: Any, whole_step: bool) -> list[torch.Tensor]:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch, index):
            loss = F.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    module = Module()
    if whole_step:
        module.training_step = compiler(module.training_step)
    else:
        module.network = compiler(module.network)
    with tempfile.TemporaryDirectory() as folder:
        run = lightning.Trainer(
            max_steps=5, enable_model_summary=False, default_root_dir=folder, gradient_clip_val=0.5, **FIT)
        run.fit(module, batches())
    return [*state(module), run.callback_metrics["loss"]]


@case("lightning", "pytorch_lightning", "lightning_utilities", "torchmetrics", graphs=2)
def lightning_network(compiler):
    return lit(compiler, False)


@case("lightning", "pytorch_lightning", "lightning_utilities", "torchmetrics", graphs=6)
def lightning_step(compiler):
    return lit(compiler, True)


@case("lightning", "lightning_utilities", "torchmetrics")
def fabric(compiler):
    from lightning.fabric import Fabric
    run = Fabric(accelerator="cpu", devices=1)
    model = nn.Linear(4, 2)
    compiled, optimizer = run.setup(compiler(model), torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        run.backward(compiled(torch.randn(3, 4)).square().sum())
        optimizer.step()
        optimizer.zero_grad()
    return state(model)


@case("gymnasium", "stable_baselines3", "cloudpickle", "pandas")
def policy_gradient(compiler):
    import gymnasium
    from stable_baselines3 import PPO

    class Coin(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (4,), dtype=np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            super().reset(seed=seed)
            self.numbers, self.steps = np.random.RandomState(0), 0
            return self.numbers.rand(4).astype(np.float32), {}

        def step(self, action):
            self.steps += 1
            return self.numbers.rand(4).astype(np.float32), float(action), self.steps >= 8, False, {}

    run = PPO("MlpPolicy", Coin(), n_steps=16, batch_size=8, n_epochs=2, seed=0, device="cpu")
    run.policy = compiler(run.policy)
    run.learn(32)
    return state(run.policy)


@case("diffusers", "requests", graphs=2)
def diffusion(compiler):
    from diffusers import DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler, UNet2DModel
    model = UNet2DModel(
        sample_size=8, layers_per_block=1, block_out_channels=(16, 16), norm_num_groups=4, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")).eval()
    compiled, images = compiler(model), []
    for kind in (DDPMScheduler, DDIMScheduler, DPMSolverMultistepScheduler):
        scheduler = kind(num_train_timesteps=20)
        scheduler.set_timesteps(4)
        image = torch.randn(1, 3, 8, 8)
        with torch.no_grad():
            for step in scheduler.timesteps:
                image = scheduler.step(compiled(image, step).sample, step, image).prev_sample
        images.append(image)
    return images


@case("ema_pytorch", graphs=10)
def moving_average(compiler):
    from ema_pytorch import EMA
    model = nn.Linear(4, 4)
    average = EMA(model, beta=0.9, update_after_step=0, update_every=1)
    update, compiled, found = compiler(average.update), compiler(average), []
    for _ in range(4):
        with torch.no_grad():
            model.weight.add_(0.1)
        update()
        found.append(compiled(torch.randn(2, 4)))
    return found


@case("torchvision", "timm", graphs=6)
def muon(compiler):
    return optimized(compiler, "muon")


@case("torchvision", "timm", graphs=3)
def lamb(compiler):
    return optimized(compiler, "lamb")


def optimized(compiler: Any, name: str) -> list[torch.Tensor]:
    from timm.optim import create_optimizer_v2
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = create_optimizer_v2(model, opt=name, lr=0.05, weight_decay=0.01)
    step = compiler(optimizer.step)
    for _ in range(4):
        model(torch.randn(2, 4)).square().sum().backward()
        step()
        optimizer.zero_grad()
    return state(model)


@case("requests", graphs=2)
def pipeline(compiler):
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertTokenizerFast,
        pipeline,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vocab.txt")
        with open(path, "w") as file:
            file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef", *("##" + c for c in "abcdef")]))
        tokenizer = BertTokenizerFast(path)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=30, **sizes)).eval()
    run = pipeline("text-classification", model=compiler(model), tokenizer=tokenizer, device="cpu")
    return torch.tensor([found["score"] for found in run(["abc", "a b c d", "fed c ba"])])



@named(CASES)
def test_program(case: Case) -> None:
    check_program(case)
