"""What a fit does not wait for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from dca import Classifier
from dca.datasets.sample import load_sample
Classifier("dca", shots=1, epochs=1, backbone=sys.argv[1], device="cpu").fit(load_sample(per_class_train=1, size=32))
sys.exit("torch._dynamo" in sys.modules)
"""


def test_a_fit_does_not_import_the_compiler(tiny_folder: Path) -> None:
    assert subprocess.run([sys.executable, "-c", CODE, str(tiny_folder)], check=False).returncode == 0
