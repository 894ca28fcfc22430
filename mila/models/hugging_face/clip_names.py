"""How ``transformers`` calls the tensors of CLIP's text encoder, and those of a whole model that are no part of it."""

from __future__ import annotations

import re
from collections.abc import Collection

from mila.core.pieces import NameMap, Piece, PieceMap
from mila.core.state import declared_state
from mila.errors import ConfigurationError
from mila.models.clip import ClipTextEncoder

PREFIX = "text_model."
#: Names of the parts of a file; of parts with a number, the number is between them.
_PARTS = {
    "token_embedding": "embeddings.token_embedding",
    "position_embedding": "embeddings.position_embedding",
    "final_norm": "final_layer_norm",
}
_LAYER_PARTS = {
    "norm_1": "layer_norm1",
    "attention.q_proj": "self_attn.q_proj",
    "attention.k_proj": "self_attn.k_proj",
    "attention.v_proj": "self_attn.v_proj",
    "attention.o_proj": "self_attn.out_proj",
    "norm_2": "layer_norm2",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
}
_LAYER = re.compile(r"layer_(\d+)_(.+)")
#: Of all versions but the latest; a row of the numbers from 0.
_POSITION_IDS = "embeddings.position_ids"
#: Of the image encoder, whose first norm is really called so.
_VISION_PART = re.compile(
    r"vision_model\.(embeddings\.(class_embedding|patch_embedding\.weight|position_embedding\.weight|position_ids)"
    r"|(pre_layrnorm|post_layernorm)\.(weight|bias)"
    r"|encoder\.layers\.(?P<layer>0|[1-9]\d*)\."
    r"(layer_norm[12]|self_attn\.(q|k|v|out)_proj|mlp\.fc[12])\.(weight|bias))",
    re.ASCII,
)
_PROJECTION = "text_projection.weight"
_OUTSIDE = ("visual_projection.weight", "logit_scale")


def canonical_names(network: ClipTextEncoder, prefix: str = PREFIX) -> PieceMap:
    """The names that an export writes: those that every version of ``transformers`` reads."""
    return {own: (Piece(_stored(own, prefix), declaration.shape),) for own, _, declaration in declared_state(network)}


def resolve_names(network: ClipTextEncoder, available: Collection[str], vision_layers: int | None) -> NameMap:
    """The map of a file with these names, and what is wrong with them.

    Args:
        network: built or not.
        available: the names in the file.
        vision_layers: blocks of the image encoder in the file; ``None`` where the file is of the text encoder alone,
            whose names may lack the prefix.
    """
    problems: list[str] = []
    prefix = PREFIX
    if vision_layers is None:
        bare = [name for name in available if name.startswith(("embeddings.", "encoder.", "final_layer_norm."))]
        prefixed = [name for name in available if name.startswith(PREFIX)]
        if bare and prefixed:
            problems.append(f"mixed names: {min(prefixed)} with and {min(bare)} without the prefix {PREFIX!r}")
        prefix = "" if bare and not prefixed else PREFIX
    left_out: set[str] = set()
    if network.text_config.projection_dim is None and _PROJECTION in available:
        left_out.add(_PROJECTION)  # told here, with the reason
        problems.append(
            f"unexpected {_PROJECTION}: by architectures in config.json the model is a CLIPTextModel, which has no "
            "projection; a CLIPTextModelWithProjection has one"
        )
    notes = []
    buffers = {name for name in available if name == f"{prefix}{_POSITION_IDS}"}
    if buffers:
        notes.append(f"ignored the buffer {min(buffers)}")
    images = set() if vision_layers is None else {name for name in available if _is_outside(name, vision_layers)}
    if images:
        notes.append(f"ignored {len(images)} tensors of the image encoder and of the comparison, such as {min(images)}")
    left_out |= buffers | images
    return NameMap(canonical_names(network, prefix), frozenset(left_out), tuple(problems), tuple(notes))


def _stored(own: str, prefix: str) -> str:
    """The name in a file of a parameter of the definition."""
    part, _, kind = own.rpartition(".")
    if part == "projection":
        return f"text_projection.{kind}"
    found = _LAYER.fullmatch(part)
    if found is not None and found[2] in _LAYER_PARTS:
        return f"{prefix}encoder.layers.{found[1]}.{_LAYER_PARTS[found[2]]}.{kind}"
    if part not in _PARTS:
        raise ConfigurationError(f"model folders have no name for {own!r}")
    return f"{prefix}{_PARTS[part]}.{kind}"


def _is_outside(name: str, vision_layers: int) -> bool:
    """Whether a tensor of a whole model belongs to its image encoder or to the comparison of both."""
    if name in _OUTSIDE:
        return True
    found = _VISION_PART.fullmatch(name)
    return found is not None and (found["layer"] is None or _is_below(found["layer"], vision_layers))


def _is_below(digits: str, limit: int) -> bool:
    return len(digits) <= len(str(limit)) and int(digits) < limit
