"""Components, each with its config."""

from mila.components.activation import Activation, ActivationConfig
from mila.components.add import Add, AddConfig
from mila.components.attention import Attention, AttentionConfig
from mila.components.broadcast_add import BroadcastAdd, BroadcastAddConfig
from mila.components.clamp import Clamp, ClampConfig
from mila.components.cls_token import ClsToken, ClsTokenConfig
from mila.components.concat import Concat, ConcatConfig
from mila.components.constant import Constant, ConstantConfig
from mila.components.context_attention import ContextAttention, ContextAttentionConfig
from mila.components.cross_attention import CrossAttention, CrossAttentionConfig
from mila.components.dropout import Dropout, DropoutConfig
from mila.components.feed_forward import FeedForward, FeedForwardConfig
from mila.components.gated_feed_forward import GatedFeedForward, GatedFeedForwardConfig
from mila.components.gated_mlp import GatedMlp, GatedMlpConfig
from mila.components.gather_token import GatherToken, GatherTokenConfig
from mila.components.gpt_block import GptBlock, GptBlockConfig
from mila.components.head_norm import HeadNorm, HeadNormConfig
from mila.components.last_position import LastPosition, LastPositionConfig
from mila.components.layer_norm import LayerNorm, LayerNormConfig
from mila.components.layer_scale import LayerScale, LayerScaleConfig
from mila.components.learned_position_encoding import LearnedPositionEncoding, LearnedPositionEncodingConfig
from mila.components.learned_scale import LearnedScale, LearnedScaleConfig
from mila.components.linear import Linear, LinearConfig
from mila.components.llama_block import LlamaBlock, LlamaBlockConfig
from mila.components.matrix_product import MatrixProduct, MatrixProductConfig
from mila.components.mixture_of_experts import MixtureOfExperts, MixtureOfExpertsConfig
from mila.components.mlp import Mlp, MlpConfig
from mila.components.multiply import Multiply, MultiplyConfig
from mila.components.pad import Pad, PadConfig
from mila.components.permute import Permute, PermuteConfig, Transpose, TransposeConfig
from mila.components.pool_tokens import PoolTokens, PoolTokensConfig
from mila.components.reduction import Mean, MeanConfig, Sum, SumConfig
from mila.components.reshape import Flatten, FlattenConfig, Reshape, ReshapeConfig
from mila.components.residual import Residual, ResidualConfig
from mila.components.rms_norm import RmsNorm, RmsNormConfig
from mila.components.rope import Rope, RopeConfig
from mila.components.rope_scaling import LinearScaling, Llama3Scaling
from mila.components.scale import Scale, ScaleConfig
from mila.components.sections import Chunk, ChunkConfig, Split, SplitConfig
from mila.components.self_attention import SelfAttention, SelfAttentionConfig
from mila.components.softmax import Softmax, SoftmaxConfig
from mila.components.softmax_cross_entropy import SoftmaxCrossEntropy, SoftmaxCrossEntropyConfig
from mila.components.subtract import Subtract, SubtractConfig
from mila.components.swiglu import Swiglu, SwigluConfig
from mila.components.token_embedding import TokenEmbedding, TokenEmbeddingConfig
from mila.components.transformer_block import TransformerBlock, TransformerBlockConfig

__all__ = [
    "Activation",
    "ActivationConfig",
    "Add",
    "AddConfig",
    "Attention",
    "AttentionConfig",
    "BroadcastAdd",
    "BroadcastAddConfig",
    "Chunk",
    "ChunkConfig",
    "Clamp",
    "ClampConfig",
    "ClsToken",
    "ClsTokenConfig",
    "Concat",
    "ConcatConfig",
    "Constant",
    "ConstantConfig",
    "ContextAttention",
    "ContextAttentionConfig",
    "CrossAttention",
    "CrossAttentionConfig",
    "Dropout",
    "DropoutConfig",
    "FeedForward",
    "FeedForwardConfig",
    "Flatten",
    "FlattenConfig",
    "GatedFeedForward",
    "GatedFeedForwardConfig",
    "GatedMlp",
    "GatedMlpConfig",
    "GatherToken",
    "GatherTokenConfig",
    "GptBlock",
    "GptBlockConfig",
    "HeadNorm",
    "HeadNormConfig",
    "LastPosition",
    "LastPositionConfig",
    "LayerNorm",
    "LayerNormConfig",
    "LayerScale",
    "LayerScaleConfig",
    "LearnedPositionEncoding",
    "LearnedPositionEncodingConfig",
    "LearnedScale",
    "LearnedScaleConfig",
    "Linear",
    "LinearConfig",
    "LinearScaling",
    "Llama3Scaling",
    "LlamaBlock",
    "LlamaBlockConfig",
    "MatrixProduct",
    "MatrixProductConfig",
    "Mean",
    "MeanConfig",
    "MixtureOfExperts",
    "MixtureOfExpertsConfig",
    "Mlp",
    "MlpConfig",
    "Multiply",
    "MultiplyConfig",
    "Pad",
    "PadConfig",
    "Permute",
    "PermuteConfig",
    "PoolTokens",
    "PoolTokensConfig",
    "Reshape",
    "ReshapeConfig",
    "Residual",
    "ResidualConfig",
    "RmsNorm",
    "RmsNormConfig",
    "Rope",
    "RopeConfig",
    "Scale",
    "ScaleConfig",
    "SelfAttention",
    "SelfAttentionConfig",
    "Softmax",
    "SoftmaxConfig",
    "SoftmaxCrossEntropy",
    "SoftmaxCrossEntropyConfig",
    "Split",
    "SplitConfig",
    "Subtract",
    "SubtractConfig",
    "Sum",
    "SumConfig",
    "Swiglu",
    "SwigluConfig",
    "TokenEmbedding",
    "TokenEmbeddingConfig",
    "TransformerBlock",
    "TransformerBlockConfig",
    "Transpose",
    "TransposeConfig",
]
