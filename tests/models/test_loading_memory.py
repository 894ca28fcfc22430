"""Loading takes what the plan says, and little beside it, also where weights are converted or transposed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mila.models import read_model_folder
from mila.models.hugging_face.folder import ARCHITECTURES
from mila.serialization import SafetensorsWriter

LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "max_position_embeddings": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
    "vocab_size": 24000,
}
GPT2 = {
    "model_type": "gpt2",
    "layer_norm_epsilon": 1e-5,
    "n_embd": 1024,
    "n_head": 16,
    "n_layer": 3,
    "n_positions": 64,
    "vocab_size": 16000,
}
MEASURE = """
import sys
import mila

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024

mila.from_pretrained(sys.argv[1], context_length=8)  # what the first call of anything takes
before, highest = status("RssAnon"), 0

def look(done, total):
    global highest
    highest = max(highest, status("RssAnon"))

network = mila.from_pretrained(sys.argv[2], context_length=8, on_progress=look)
held = network._execution.planned.plan.reserved_bytes
print(held, highest - before, status("VmHWM") - before)
"""


def write_folder(folder: Path, config: dict[str, Any], dtype: str) -> None:
    """A folder whose weights are all the same, written without holding them."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    pieces = ARCHITECTURES[config["model_type"]].names.canonical(read_model_folder(folder).network())
    with SafetensorsWriter(folder / "model.safetensors") as writer:
        shapes = {piece.name: piece.shape for each in pieces.values() for piece in each}
        for name, shape in shapes.items():
            writer.declare(name, dtype, shape, convert=True)
        writer.begin()
        for name, shape in shapes.items():
            writer.write(name, np.broadcast_to(np.float32(0.01), shape))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("config", "dtype"), [(LLAMA, "bfloat16"), (LLAMA, "float32"), (GPT2, "float16")])
def test_resident_memory_is_the_plan_and_little_more(config: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "model", config, dtype)
    small = {"num_hidden_layers": 1, "n_layer": 1, "vocab_size": 64}
    write_folder(tmp_path / "small", config | {key: small[key] for key in small.keys() & config.keys()}, dtype)
    arguments = [sys.executable, "-c", MEASURE, str(tmp_path / "small"), str(tmp_path / "model")]
    completed = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    held, anonymous, highest = map(int, completed.stdout.split())
    assert held > 200e6
    assert 0.9 * held < anonymous <= held + 20e6
    assert highest <= held + 100e6
