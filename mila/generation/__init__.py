"""Text from networks: prefill, decode, samplers, sessions, tokenizers."""

from mila.generation.config import Completion, GenerationConfig, Status
from mila.generation.decoding import Decodable, Decoding, TokenCallback, TokenStream, generate, stream
from mila.generation.sampler import Sampler
from mila.generation.session import DecodingSession
from mila.generation.token_ids import TokenSequence, is_single_prompt

__all__ = [
    "Completion",
    "Decodable",
    "Decoding",
    "DecodingSession",
    "GenerationConfig",
    "Sampler",
    "Status",
    "TokenCallback",
    "TokenSequence",
    "TokenStream",
    "generate",
    "is_single_prompt",
    "stream",
]
