"""Write the golden CLIP folders: ``python -m tests.models.make_clip_golden``, with torch and transformers installed.

Each is a folder as ``transformers`` saves it, and a file of what its model computes: the outputs, weights of their sum,
and its gradients.
"""

from __future__ import annotations

import shutil

from safetensors.numpy import save_file

from tests.models.clip_cases import CLIP_GOLDEN, CLIP_GOLDEN_CASES
from tests.models.torch_clip import clip_gradients_of, new_clip_model, outputs_of, save_clip_folder, weights_of


def main() -> None:
    """Write all of them."""
    shutil.rmtree(CLIP_GOLDEN, ignore_errors=True)
    for case in CLIP_GOLDEN_CASES:
        model = new_clip_model(case)
        save_clip_folder(case, model, CLIP_GOLDEN / case.name)
        ids, _ = case.ids()
        outputs = outputs_of(model, ids)
        weights = weights_of(case, outputs)
        expected = outputs | {f"weight.{name}": array for name, array in weights.items()}
        gradients = clip_gradients_of(model, ids, weights)
        expected |= {f"gradient.{name}": array.astype("float32") for name, array in gradients.items()}
        save_file(expected, CLIP_GOLDEN / f"{case.name}.safetensors")
        print(case.name, sum(file.stat().st_size for file in CLIP_GOLDEN.rglob(f"{case.name}*/*")), "bytes")


if __name__ == "__main__":
    main()
