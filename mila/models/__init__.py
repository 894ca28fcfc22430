"""Whole models."""

from mila.models.clip import ClipTextEncoder, ClipTextOutput
from mila.models.clip_definition import ClipTextConfig, clip_text_definition
from mila.models.clip_operators import CLIP_REGISTRY
from mila.models.gpt import GptConfig, GptTransformer
from mila.models.hugging_face.clip_config import ClipTextFolder, read_clip_text_folder
from mila.models.hugging_face.exporting import export_pretrained
from mila.models.hugging_face.folder import ModelFolder, read_model_folder
from mila.models.hugging_face.importing import from_pretrained, load_weights
from mila.models.language_model import LanguageModel, LanguageModelConfig
from mila.models.llama import LlamaConfig, LlamaTransformer
from mila.models.pretrained import Pretrained

__all__ = [
    "CLIP_REGISTRY",
    "ClipTextConfig",
    "ClipTextEncoder",
    "ClipTextFolder",
    "ClipTextOutput",
    "GptConfig",
    "GptTransformer",
    "LanguageModel",
    "LanguageModelConfig",
    "LlamaConfig",
    "LlamaTransformer",
    "ModelFolder",
    "Pretrained",
    "clip_text_definition",
    "export_pretrained",
    "from_pretrained",
    "load_weights",
    "read_clip_text_folder",
    "read_model_folder",
]
