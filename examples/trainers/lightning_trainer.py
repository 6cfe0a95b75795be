"""A classifier trained by Lightning: one line compiles it."""

import lightning as L
import torch
from torch import nn

import firebrick


class Classifier(L.LightningModule):
    """Convolutions, batch norm, and a loss for each step."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        self.losses = []

    def training_step(self, batch):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def train(compiled=True, epochs=3):
    """Losses and the trained module."""
    torch.manual_seed(0)
    module = Classifier()
    if compiled:
        module.net = firebrick.compile(module.net)
    data = torch.utils.data.TensorDataset(torch.randn(32, 1, 8, 8), torch.randint(0, 4, (32,)))
    loader = torch.utils.data.DataLoader(data, 8)
    L.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False).fit(module, loader)
    return module.losses, module


if __name__ == "__main__":
    print(train()[0])
