"""Whatever a ``config.json`` says is a target that can be planned, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mila import BuildContext, ExecutionContext, RuntimeMode
from mila.errors import MilaError
from mila.memory.storage import FLOAT32
from mila.planning.presets import presets
from mila.planning.targets import read_target

#: Sizes of no model, and values of every other kind.
VALUES: list[Any] = [None, True, -1, 0, 3, 10**9, 10**30, 1e308, "x", [1], {"rope_type": "llama3"}]
KEYS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "rope_parameters", "head_dim")


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "mistral-7b-v0.1", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_any_value_of_any_field_is_planned_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    fields = presets()[name].config
    fields = fields | {key: 1 for key in ("n_layer", "num_hidden_layers") if key in fields}
    file, device = tmp_path / "config.json", ExecutionContext.to_plan_with("cpu")
    outcomes = []
    for key in dict.fromkeys((*fields, *KEYS)):
        for value in VALUES:
            file.write_text(json.dumps(fields | {key: value}))
            try:
                target = read_target(file)
                network = target.make(target.config, device, FLOAT32)
                network.plan(BuildContext((1, 1), RuntimeMode.INFERENCE))
                outcomes.append(True)
            except MilaError as error:
                assert "\n" not in str(error), (key, value)
                outcomes.append(False)
    assert 20 < sum(outcomes) < len(outcomes) - 20
