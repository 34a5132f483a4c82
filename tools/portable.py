"""Run the notebooks as other machines would: with other kernels, threads and first weights; and
once as a reader does, without guards.

A model that trains on a page comes out a little different on each processor, and from there ever
more different. What a page says of it must hold all the same. Each setting below runs all notebooks
once; without names, all settings run.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.command import command_line

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "as-a-reader": {"CHECK_BOOK": ""},  # without guards, all outputs are the same
    "kernels-old": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "kernels-avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "threads-2": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    "threads-4": {"OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "passive"},
    "moved-1": {"MOVED": "1"},
    "moved-2": {"MOVED": "2"},
    "moved-3": {"MOVED": "3"},
}
# Python runs a file of this name at its start: so in kernels, commands and processes of torchrun
MOVE = '''
import os

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def move(optimizer, arguments, options):
    """Before its first step, move each weight of a model by about a millionth of itself."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if optimizer.state or sum(weight.numel() for weight in weights) < 100:
        return  # a run that goes on; a comparison with an optimizer by hand
    draws = torch.Generator().manual_seed(int(os.environ["MOVED"]))
    for weight in weights:
        noise = torch.randn(weight.shape, generator=draws)
        weight.data.mul_(1 + 1e-6 * noise.to(weight.device))


register_optimizer_step_pre_hook(move)
'''


def run(setting: str, arguments: list[str]) -> int:
    """Run pytest under a setting; return its exit code."""
    environment = {**os.environ, **SETTINGS[setting]}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    with tempfile.TemporaryDirectory() as folder:
        if "MOVED" in environment:
            Path(folder, "sitecustomize.py").write_text(MOVE, encoding="utf-8")
            environment["PYTHONPATH"] = folder
        return subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment
        ).returncode


def main() -> None:
    """Run what was named, or all; exit 1 if anything failed."""
    parser = command_line("tools.portable", __doc__)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(SETTINGS)}; or a path to test"
    )
    names = parser.parse_args().names
    paths = [name for name in names if name not in SETTINGS] or ["notebooks"]
    spread = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    failed = []
    for setting in [name for name in names if name in SETTINGS] or SETTINGS:
        print(f"--- {setting}: {SETTINGS[setting]}", flush=True)
        if run(setting, [*spread, "-m", "not slow", *paths]):
            failed.append(setting)
    if failed:
        sys.exit(f"make test-portable: fails with {', '.join(failed)}")


if __name__ == "__main__":
    main()
