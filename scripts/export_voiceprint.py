"""Writes Resemblyzer's voiceprint, which is published as weights only, as a TorchScript module.

Runs under scripts/torch_python.sh.
"""

import argparse
import pathlib
import warnings

import torch

LAYERS = 3
HIDDEN = 256
MELS = 40
WINDOW_ROWS = 160


class Voiceprint(torch.nn.Module):
    """Maps mels f32[n, 160, 40] to unit vectors f32[n, 256]."""

    def __init__(self, state: dict[str, torch.Tensor]):
        super().__init__()
        for layer in range(LAYERS):
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                self.register_parameter(f"{part}_{layer}", frozen(state[f"lstm.{part}_l{layer}"]))
        self.weight = frozen(state["linear.weight"])
        self.bias = frozen(state["linear.bias"])

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros([3, mels.size(0), 256], dtype=mels.dtype, device=mels.device)
        weights = [
            self.weight_ih_0, self.weight_hh_0, self.bias_ih_0, self.bias_hh_0,
            self.weight_ih_1, self.weight_hh_1, self.bias_ih_1, self.bias_hh_1,
            self.weight_ih_2, self.weight_hh_2, self.bias_ih_2, self.bias_hh_2,
        ]  # fmt: skip
        _, hidden, _ = torch._VF.lstm(mels, [zeros, zeros], weights, True, 3, 0.0, False, False, True)
        embedding = torch.relu(torch.nn.functional.linear(hidden[-1], self.weight, self.bias))
        # A vector of zeros has no direction. It stays zeros instead of becoming NaN.
        return embedding / torch.norm(embedding, dim=1, keepdim=True).clamp_min(1e-12)


def frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor.detach().clone(), requires_grad=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=pathlib.Path, required=True, help="resemblyzer/pretrained.pt")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="the module's file")
    arguments = parser.parse_args()
    state = torch.load(arguments.weights, map_location="cpu", weights_only=True)["model_state"]
    # torch.export, which torch recommends, writes files that only Python and compiled packages can run.
    warnings.filterwarnings("ignore", message=".*torch.jit.*", category=FutureWarning)
    module = torch.jit.script(Voiceprint(state).eval())
    check(module, state)
    partial = arguments.to.with_suffix(".partial")
    module.save(str(partial))
    partial.rename(arguments.to)


def check(module: torch.jit.ScriptModule, state: dict[str, torch.Tensor]) -> None:
    """Checks the module against torch's own layers with the same weights."""
    lstm = torch.nn.LSTM(MELS, HIDDEN, LAYERS, batch_first=True)
    weights = [name for name in state if name.startswith("lstm.")]
    lstm.load_state_dict({name.removeprefix("lstm."): state[name] for name in weights})
    mels = torch.rand(3, WINDOW_ROWS, MELS, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, (hidden, _) = lstm(mels)
        wanted = torch.relu(hidden[-1] @ state["linear.weight"].T + state["linear.bias"])
        wanted /= torch.norm(wanted, dim=1, keepdim=True)
        difference = (module(mels) - wanted).abs().max().item()
    assert difference < 1e-5, difference


if __name__ == "__main__":
    main()
