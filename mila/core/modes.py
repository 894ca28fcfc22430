"""What a build is for, what a run is for, and what kinds of components there are."""

from __future__ import annotations

from enum import Enum, StrEnum


class RuntimeMode(Enum):
    """Fixed at build; decides what is allocated."""

    INFERENCE = "inference"
    TRAINING = "training"


class TrainingMode(Enum):
    """A switch at run time, on a component built for training: in ``EVAL`` dropout is off and backward is refused."""

    NORMAL = "normal"
    EVAL = "eval"


class ComponentType(StrEnum):
    """Kinds of components, by the short names under which they print."""

    TOKEN_EMBEDDING = "token_embedding"
    LEARNED_POSITION_ENCODING = "learned_position_encoding"
    ROPE = "rope"
    LINEAR = "linear"
    LAYER_NORM = "layer_norm"
    RMS_NORM = "rms_norm"
    HEAD_NORM = "head_norm"
    ACTIVATION = "activation"
    SWIGLU = "swiglu"
    SOFTMAX = "softmax"
    DROPOUT = "dropout"
    RESIDUAL = "residual"
    ATTENTION = "attention"
    LAST_POSITION = "last_position"
    SPLIT = "split"
    CHUNK = "chunk"
    CONCAT = "concat"
    RESHAPE = "reshape"
    FLATTEN = "flatten"
    TRANSPOSE = "transpose"
    PERMUTE = "permute"
    PAD = "pad"
    MEAN = "mean"
    SUM = "sum"
    CONTEXT_ATTENTION = "context_attention"
    CROSS_ATTENTION = "cross_attention"
    SELF_ATTENTION = "self_attention"
    SOFTMAX_CROSS_ENTROPY = "softmax_cross_entropy"
    GATHER_TOKEN = "gather_token"
    CLS_TOKEN = "cls_token"
    POOL_TOKENS = "pool_tokens"
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    BROADCAST_ADD = "broadcast_add"
    SCALE = "scale"
    CLAMP = "clamp"
    CONSTANT = "constant"
    LEARNED_SCALE = "learned_scale"
    LAYER_SCALE = "layer_scale"
    MATRIX_PRODUCT = "matrix_product"
    MLP = "mlp"
    GATED_MLP = "gated_mlp"
    MIXTURE_OF_EXPERTS = "mixture_of_experts"
    FEED_FORWARD = "feed_forward"
    GATED_FEED_FORWARD = "gated_feed_forward"
    GPT_BLOCK = "gpt_block"
    LLAMA_BLOCK = "llama_block"
    TRANSFORMER_BLOCK = "transformer_block"
    NETWORK = "network"
    TRAINING_STEP = "training_step"
    CUSTOM = "custom"
