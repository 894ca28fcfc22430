"""Write the golden model folders: ``python -m tests.models.make_golden``, with torch and transformers installed.

Each is a folder as ``transformers`` saves it, and a file of what its model computes: ids, targets, logits, and the
gradients of the loss.
"""

from __future__ import annotations

import shutil

from safetensors.numpy import save_file

from tests.models.folder_cases import GOLDEN, GOLDEN_CASES
from tests.models.torch_folders import draw_ids, gradients_of, logits_of, new_model, save_folder


def main() -> None:
    """Write all of them."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for case in GOLDEN_CASES:
        model = new_model(case)
        save_folder(case, model, GOLDEN / case.name)
        (GOLDEN / case.name / "generation_config.json").unlink(missing_ok=True)
        ids, targets = draw_ids(case)
        expected = {"ids": ids, "targets": targets, "logits": logits_of(model, ids)}
        expected |= {f"gradient.{name}": array.copy() for name, array in gradients_of(model, ids, targets).items()}
        save_file(expected, GOLDEN / f"{case.name}.safetensors")
        print(case.name, sum(file.stat().st_size for file in GOLDEN.rglob(f"{case.name}*/*")), "bytes")


if __name__ == "__main__":
    main()
