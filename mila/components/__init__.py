"""Components: one per file, each with its config."""

from mila.components.activation import Activation, ActivationConfig
from mila.components.attention import Attention, AttentionConfig
from mila.components.dropout import Dropout, DropoutConfig
from mila.components.gated_mlp import GatedMlp, GatedMlpConfig
from mila.components.gpt_block import GptBlock, GptBlockConfig
from mila.components.head_norm import HeadNorm, HeadNormConfig
from mila.components.last_position import LastPosition, LastPositionConfig
from mila.components.layer_norm import LayerNorm, LayerNormConfig
from mila.components.learned_position_encoding import LearnedPositionEncoding, LearnedPositionEncodingConfig
from mila.components.linear import Linear, LinearConfig
from mila.components.llama_block import LlamaBlock, LlamaBlockConfig
from mila.components.mlp import Mlp, MlpConfig
from mila.components.residual import Residual, ResidualConfig
from mila.components.rms_norm import RmsNorm, RmsNormConfig
from mila.components.rope import Rope, RopeConfig
from mila.components.rope_scaling import LinearScaling, Llama3Scaling
from mila.components.softmax import Softmax, SoftmaxConfig
from mila.components.softmax_cross_entropy import SoftmaxCrossEntropy, SoftmaxCrossEntropyConfig
from mila.components.swiglu import Swiglu, SwigluConfig
from mila.components.token_embedding import TokenEmbedding, TokenEmbeddingConfig

__all__ = [
    "Activation",
    "ActivationConfig",
    "Attention",
    "AttentionConfig",
    "Dropout",
    "DropoutConfig",
    "GatedMlp",
    "GatedMlpConfig",
    "GptBlock",
    "GptBlockConfig",
    "HeadNorm",
    "HeadNormConfig",
    "LastPosition",
    "LastPositionConfig",
    "LayerNorm",
    "LayerNormConfig",
    "LearnedPositionEncoding",
    "LearnedPositionEncodingConfig",
    "Linear",
    "LinearConfig",
    "LinearScaling",
    "Llama3Scaling",
    "LlamaBlock",
    "LlamaBlockConfig",
    "Mlp",
    "MlpConfig",
    "Residual",
    "ResidualConfig",
    "RmsNorm",
    "RmsNormConfig",
    "Rope",
    "RopeConfig",
    "Softmax",
    "SoftmaxConfig",
    "SoftmaxCrossEntropy",
    "SoftmaxCrossEntropyConfig",
    "Swiglu",
    "SwigluConfig",
    "TokenEmbedding",
    "TokenEmbeddingConfig",
]
