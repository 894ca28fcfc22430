"""The PyTorch GPT of the parity tests on any device."""

from __future__ import annotations

from tests.parity.torch_models import Tensor, TorchGpt


class PlacedGpt(TorchGpt):
    """As its base, whose positions are those of the CPU."""

    def forward(self, ids: Tensor) -> Tensor:
        """Ids (B, T) to logits (B, T, V)."""
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))
