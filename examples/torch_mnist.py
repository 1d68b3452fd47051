# SPDX-License-Identifier: Apache-2.0
"""Digits with a small convolutional network in torch: plain modules, `--use-te`, or `--use-fp8`."""
from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, Optional

import torch
import torch.nn.functional as tF
from torch import Tensor, nn
from tqdm import tqdm

import digits
import libte
import libte_torch as te
import shared


class Net(nn.Module):
    """images [n, 1, side, side] -> scores [n, 10]; `linear(in, out)` makes the two large linear layers."""

    def __init__(self, side: int, linear: Any) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc1, self.fc2 = linear(16 * (side // 2) ** 2, 128), linear(128, 128)
        self.head = nn.Linear(128, 10)  # 10 classes are no multiple of 16: not worth FP8

    def forward(self, x: Tensor) -> Tensor:
        x = tF.max_pool2d(tF.relu(self.conv2(tF.relu(self.conv1(x)))), 2).flatten(1)
        return self.head(tF.relu(self.fc2(tF.relu(self.fc1(x)))))


def main(arguments: Optional[list[str]] = None) -> shared.Result:
    p = shared.parser(__doc__, epochs=15, batch_size=64, lr=2e-3)
    p.add_argument("--data", help=digits.HELP)
    a = p.parse_args(arguments)
    device, _ = shared.torch_device(a.device)
    x, x_test, y, y_test = (torch.from_numpy(t).to(device) for t in digits.load(a.data))
    torch.manual_seed(a.seed)
    with device:
        net = Net(x.shape[-1], nn.Linear)
        if a.use_te or a.use_fp8:  # the same start in every mode
            weights, net = net.state_dict(), Net(x.shape[-1], te.Linear)
            net.load_state_dict(weights)
    optimizer = torch.optim.AdamW(net.parameters(), lr=a.lr)
    recipe = te.recipe.DelayedScaling(amax_history_len=16)
    calls: dict[str, int] = {}
    start = time.perf_counter()
    bar = tqdm(shared.Batches(len(y), a.batch_size, a.epochs, torch.randperm), desc="training", ncols=100, mininterval=0.5)
    for last, rows in bar:
        rows = rows.to(device)
        with libte.trace() if last else nullcontext() as trace:
            with te.autocast(enabled=a.use_fp8, recipe=recipe):
                loss = tF.cross_entropy(net(x[rows, None]), y[rows].long())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if trace is not None:
            calls = trace.counts()
        if last or bar.n % 10 == 0:  # reading the loss waits for the device
            bar.set_postfix(loss=f"{loss.item():.4f}")
    net.eval()
    with torch.no_grad(), te.autocast(enabled=a.use_fp8, recipe=recipe):
        guesses = torch.cat([net(part[:, None]).argmax(-1) for part in x_test.split(1024)])
    accuracy = (guesses == y_test).float().mean().item()
    return shared.report(shared.mode(a), accuracy, f"{len(y_test)} test images", start, calls, a.use_fp8)


if __name__ == "__main__":
    main()
