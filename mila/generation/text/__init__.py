"""Text at both ends of generation: tokenizers, chat templates, stop strings, conversations."""

from mila.generation.text.chat_template import ChatTemplate, Message
from mila.generation.text.completion import (
    Prompt,
    TextCompletion,
    TextStream,
    generate_text,
    generate_texts,
    stream_text,
)
from mila.generation.text.conversation import Answer, Conversation
from mila.generation.text.incremental import IncrementalDecoder, StopStrings
from mila.generation.text.recommendations import recommended_sampling
from mila.generation.text.tokenizer import TextTokenizer

__all__ = [
    "Answer",
    "ChatTemplate",
    "Conversation",
    "IncrementalDecoder",
    "Message",
    "Prompt",
    "StopStrings",
    "TextCompletion",
    "TextStream",
    "TextTokenizer",
    "generate_text",
    "generate_texts",
    "recommended_sampling",
    "stream_text",
]
