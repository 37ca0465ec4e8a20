"""What does Opacus's ghost clipping cost? Against the plain PyTorch gradient of the same model.

    python benchmarks/opacus_ghost.py [--rounds 7]

Needs torch and opacus, which this package does not: run it in an environment of its own. The
models are those of clipping.py as PyTorch layers that ghost clipping supports: the transformer's
attention is built of linear layers, and its positions are an embedding.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import opacus
import torch
from opacus.utils import fast_gradient_clipping_utils
from torch import nn

SECONDS_PER_SAMPLE = 0.03
VOCABULARY = 256


class Model(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: torch.Tensor  # [batch, ...]
    labels: torch.Tensor  # [batch], or [batch, positions]


class Attention(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        def split(y):
            return y.reshape(*y.shape[:2], self.heads, -1).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.mix(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = Attention(d, heads)
        self.feed_forward = nn.Sequential(
            nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, length: int, d: int = 128, layers: int = 2, heads: int = 4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, d), nn.Embedding(length, d)
        self.blocks = nn.Sequential(*(Block(d, heads) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, VOCABULARY)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1]).expand_as(tokens).contiguous()
        return self.out(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


class EmbeddingClassifier(nn.Module):
    def __init__(self, vocabulary: int, d: int = 64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, d)
        self.head = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 10))

    def forward(self, tokens):
        return self.head(self.tokens(tokens).mean(dim=1))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def images(batch: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, *shape), torch.randint(10, (batch,))


def text(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (batch, length + 1))
    # Opacus takes views of the indices, so they must lie in one piece.
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def classified_text(batch: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = (torch.rand(batch, length).square() * vocabulary).long()
    return tokens, torch.randint(10, (batch,))


def all_models() -> dict[str, Model]:
    return {
        "mlp_256": Model(mlp, *images(256, 784)),
        "mlp_2048": Model(mlp, *images(2048, 784)),
        "cnn_256": Model(cnn, *images(256, 1, 28, 28)),
        "transformer_64": Model(lambda: Transformer(64), *text(32, 64)),
        "transformer_512": Model(lambda: Transformer(512), *text(8, 512)),
        "embedding_256": Model(
            lambda: EmbeddingClassifier(50_000), *classified_text(256, 64, 50_000)
        ),
    }


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    """Of each example, the mean over its positions; then reduced over examples."""
    if labels.ndim == 1:
        return nn.functional.cross_entropy(logits, labels, reduction=reduction)
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    means = losses.mean(dim=1)
    return means.mean() if reduction == "mean" else means


class Criterion(nn.Module):
    """What Opacus expects of a criterion: an attribute that says how it reduces."""

    def __init__(self):
        super().__init__()
        self.reduction = "mean"

    def forward(self, logits, labels):
        return cross_entropy(logits, labels, self.reduction)


def plain_step(model: Model) -> Callable[[], Any]:
    module = model.make()

    def step():
        module.zero_grad()
        cross_entropy(module(model.inputs), model.labels, "mean").backward()

    return step


def ghost_step(model: Model, clip_norm: float) -> Callable[[], Any]:
    """Two backward passes and the clipped sum, without the noise."""
    module = opacus.GradSampleModuleFastGradientClipping(
        model.make(),
        max_grad_norm=clip_norm,
        use_ghost_clipping=True,
        loss_reduction="mean",
        batch_first=True,
    )
    optimizer = opacus.optimizers.DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=clip_norm,
        expected_batch_size=len(model.inputs),
    )
    criterion = fast_gradient_clipping_utils.DPLossFastGradientClipping(
        module, optimizer, Criterion()
    )

    def step():
        optimizer.zero_grad()
        criterion(module(model.inputs), model.labels).backward()

    return step


def seconds_per_call(step: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def measure(model: Model, rounds: int) -> tuple[float, float]:
    """Median milliseconds of the plain gradient, and the median ratio of ghost clipping to it."""
    steps = plain_step(model), ghost_step(model, 1.0)
    calls = []
    for step in steps:
        seconds_per_call(step, 2)
        calls.append(max(1, round(SECONDS_PER_SAMPLE / seconds_per_call(step, 1))))
    samples = [
        [seconds_per_call(step, n) for step, n in zip(steps, calls, strict=True)]
        for _ in range(rounds)
    ]
    plain = statistics.median(plain for plain, _ in samples)
    return 1e3 * plain, statistics.median(ghost / plain for plain, ghost in samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(0)
    print("| model | plain PyTorch, ms | Opacus ghost clipping, ratio |")
    print("|---|---|---|")
    for name, model in all_models().items():
        plain, ratio = measure(model, args.rounds)
        print(f"| {name} | {plain:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
