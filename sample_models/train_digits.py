"""Train the digits net and write its checkpoint and samples: python -m sample_models.train_digits.

Seeded from end to end. A quarter of scikit-learn's digits (stratified) is held out of training.
The script prints the accuracy on it and writes, beside itself, digits.safetensors (the weights),
digits_samples.npz (`x`: eight held-out digits) and digits_heldout.npz (`x`, labels `y`: all).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from .digits import build

SEED = 0
EPOCHS = 60
BATCH = 64
SAMPLES = 8
HERE = Path(__file__).parent


def main() -> None:
    """Train, measure on the held-out digits, write the three files."""
    torch.manual_seed(SEED)
    train_x, held_x, train_y, held_y = split()
    model = build()
    _fit(model, torch.from_numpy(train_x), torch.from_numpy(train_y))
    right = _predict(model, torch.from_numpy(held_x)) == torch.from_numpy(held_y)
    print(f"held-out accuracy: {right.float().mean():.2%} ({int(right.sum())} of {right.numel()})")
    save_file(model.state_dict(), HERE / "digits.safetensors")
    np.savez_compressed(HERE / "digits_samples.npz", x=held_x[:SAMPLES])
    np.savez_compressed(HERE / "digits_heldout.npz", x=held_x, y=held_y)


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Train images, held-out images, train labels, held-out labels; images (n, 1, 8, 8) in 0..1."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    parts = train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=SEED)
    train_x, held_x, train_y, held_y = parts
    return train_x, held_x, train_y, held_y


def _fit(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    model.train()
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(images)), BATCH):
            optimizer.zero_grad()
            loss_of(model(_shifted(images[rows])), labels[rows]).backward()
            optimizer.step()
            schedule.step()


def _shifted(images: torch.Tensor) -> torch.Tensor:
    """Move the batch by at most one pixel each way, so that the net does not learn positions."""
    down, right = (int(step) for step in torch.randint(-1, 2, (2,)))
    return torch.roll(images, (down, right), dims=(2, 3))


@torch.no_grad()
def _predict(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    model.eval()
    logits: torch.Tensor = model(images)
    return logits.argmax(dim=1)


if __name__ == "__main__":
    main()
