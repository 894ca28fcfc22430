"""Whole models."""

from mila.models.gpt import GptConfig, GptTransformer
from mila.models.language_model import LanguageModel, LanguageModelConfig
from mila.models.llama import LlamaConfig, LlamaTransformer

__all__ = [
    "GptConfig",
    "GptTransformer",
    "LanguageModel",
    "LanguageModelConfig",
    "LlamaConfig",
    "LlamaTransformer",
]
