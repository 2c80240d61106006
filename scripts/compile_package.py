#!/usr/bin/env python3
"""Compiles the AOTInductor package of the LibTorch engine's tests: native code for this machine.

Run it through scripts/torch_python.sh; needs a C++ compiler.
"""

import argparse
import os
import pathlib


def module():
    """relu(linear(x)) and x.sum(1), all weights 0.5 and biases 1, as crates/engine-torch/tests/it/package.rs expects.

    Then forward writes zeros to x. The tests check that the caller's tensor stays.
    """
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)
            torch.nn.init.constant_(self.linear.weight, 0.5)
            torch.nn.init.constant_(self.linear.bias, 1.0)

        def forward(self, x):
            outputs = torch.relu(self.linear(x)), x.sum(1)
            x.zero_()
            return outputs

    return Module().eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=pathlib.Path, required=True, help="the package, a file ending in .pt2")
    to = parser.parse_args().to.absolute()
    to.parent.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(to.parent / "inductor")
    import torch
    import torch._inductor

    rows = torch.export.Dim("rows", min=1, max=1024)
    with torch.no_grad():
        program = torch.export.export(module(), (torch.ones(2, 4),), dynamic_shapes={"x": {0: rows}})
        torch._inductor.aoti_compile_and_package(program, package_path=str(to))


if __name__ == "__main__":
    main()
