"""The CLIP folders of the tests: configs as ``transformers`` knows them, which model is saved, and the ids it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mila.kernels.signatures import Array

CLIP_GOLDEN = Path(__file__).parent / "clip_golden"
#: Batch and length of the ids that are compared; the length is the longest that the models take.
SHAPE = (4, 11)
B, T = SHAPE


@dataclass(frozen=True)
class ClipCase:
    """One model folder.

    Attributes:
        name: of the case.
        model: the class that is saved: ``CLIPTextModel``, ``CLIPTextModelWithProjection`` or ``CLIPModel``.
        fields: of ``CLIPTextConfig``.
        dtype: of the weights in the files.
        shards: whether the weights are in several files.
        is_golden: also a checked-in folder.
    """

    name: str
    model: Literal["CLIPTextModel", "CLIPTextModelWithProjection", "CLIPModel"]
    fields: dict[str, Any] = field(default_factory=dict)
    dtype: Literal["float32", "bfloat16"] = "float32"
    shards: bool = False
    is_golden: bool = False

    @property
    def seed(self) -> int:
        """Of the weights and ids."""
        return int.from_bytes(self.name.encode(), "little") % 2**32

    @property
    def config(self) -> dict[str, Any]:
        """All fields of the config."""
        return _BASE | self.fields

    @property
    def end(self) -> int:
        """The id that ends a text: also where it is found by being the largest."""
        end: int = self.config["eos_token_id"]
        return _LARGEST if end == 2 else end

    def ids(self) -> tuple[Array, Array]:
        """Ids (B, T), int64, and the mask of the tokens that stand before the padding.

        A text that is padded with ends, one with a second end, one that fills the length, and one without an end, whose
        largest id stands in it twice.
        """
        generator = np.random.default_rng(self.seed)
        ids = generator.integers(3, 17, SHAPE).astype(np.int64)
        ids[0, 4:] = self.end
        ids[1, 6], ids[1, 8], ids[1, 9:] = self.end, self.end, 1
        ids[2, -1] = self.end
        ids[3, 2] = ids[3, 7] = 17
        lengths = [5, 7, T, T]
        return ids, (np.arange(T) < np.array(lengths)[:, None]).astype(np.int64)


_LARGEST = 22
_BASE: dict[str, Any] = {
    "vocab_size": 23,
    "hidden_size": 12,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": T,
    "projection_dim": 9,
    "hidden_act": "quick_gelu",
    "bos_token_id": 21,
    "eos_token_id": 22,
    "pad_token_id": 1,
}
_OLD = {"eos_token_id": 2}
_GELU = {"hidden_act": "gelu"}
_ODD = {"hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 19, "layer_norm_eps": 1e-3}

CLIP_CASES = (
    ClipCase("text", "CLIPTextModel", _GELU | {"num_attention_heads": 1, "eos_token_id": 18}),
    ClipCase("text_old", "CLIPTextModel", _OLD, is_golden=True),
    ClipCase("projected", "CLIPTextModelWithProjection", _ODD, is_golden=True),
    ClipCase("projected_old", "CLIPTextModelWithProjection", _OLD | _GELU, dtype="bfloat16"),
    ClipCase("projected_deep", "CLIPTextModelWithProjection", {"num_hidden_layers": 5, "hidden_size": 4}, shards=True),
    ClipCase("projected_flat", "CLIPTextModelWithProjection", {"num_hidden_layers": 0, "projection_dim": 1}),
    ClipCase("whole", "CLIPModel", {"eos_token_id": 18}, dtype="bfloat16"),
    ClipCase("whole_old", "CLIPModel", _OLD | _GELU | {"num_hidden_layers": 1}, is_golden=True),
)
CLIP_GOLDEN_CASES = [case for case in CLIP_CASES if case.is_golden]
