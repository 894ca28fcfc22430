"""What loading a model would say: its own words, without a network's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mila.core.loading import LoadPlan
from mila.core.pieces import NameMap
from mila.errors import CheckpointError, MilaError, UnknownArchitectureError
from mila.models import GptTransformer, LlamaTransformer
from mila.models.gguf_import.architectures import describe_model
from mila.models.gguf_import.source import GgufSource
from mila.models.hugging_face.architecture import Architecture
from mila.models.hugging_face.clip_config import clip_text_folder
from mila.models.hugging_face.folder import ARCHITECTURES, CLIP_MODEL_TYPES, CONFIG_FILE
from mila.models.hugging_face.names import HEAD, TABLE
from mila.models.hugging_face.vocabulary import check_vocabulary
from mila.models.language_model import LanguageModelConfig
from mila.planning.inspection_report import ContentKind, Finding, FindingKind
from mila.planning.interpreted import meaning_of, require_plannable
from mila.planning.stored_content import StoredContent
from mila.planning.stored_weights import HeaderTensors, compare
from mila.planning.text_encoder import compare_text_encoder
from mila.planning.value_comparison import Side, compare_values, incomparable
from mila.serialization import FORMAT_DTYPES, SafetensorsFile, TensorEntry
from mila.serialization.failures import refusal, shown
from mila.serialization.sharded import INDEX_NAME, SINGLE_FILE_NAME
from mila.training.saved_model import load_architecture

#: Of an archive.
PARAMETERS = "model/parameters.safetensors"
_FORMAT_NAMES = {
    each.name.lower() if each.numpy_dtype is None else each.numpy_dtype.name: each.name
    for each in FORMAT_DTYPES.values()
}


def check_loading(content: StoredContent) -> tuple[list[Finding], list[Finding]]:
    """Hold the weights of a model against what describes it.

    Args:
        content: open, as values tell whether a head is the token table; of a model of the hub, that and the tokenizer
            are left out.

    Returns:
        Problems: what ``from_pretrained``, ``mila import`` or ``load_model`` refuse, and of a config by itself what
        ``mila plan`` does; and notes: what they would mention. A model that Mila does not have is a note: nothing is
        wrong with its files.
    """
    try:
        return [], [Finding(kind=FindingKind.MODEL, message=note) for note in _CHECKS[content.kind](content)]
    except MilaError as error:
        return [Finding(kind=FindingKind.NOT_LOADABLE, message=content.words_of(error))], []


def header_tensors(content: StoredContent) -> HeaderTensors:
    """The headers of safetensors files, as planning takes them."""
    entries = {
        name: TensorEntry(name, _FORMAT_NAMES[tensor.dtype], tensor.shape, tensor.begin, tensor.begin + tensor.nbytes)
        for name, tensor in content.tensors.items()
    }
    return HeaderTensors(content.place, entries, content.aliases, content.metadata)


def _check_folder(content: StoredContent) -> tuple[str, ...]:
    config, file = content.config, content.config_file
    if config is None or file is None:
        raise refusal(content.place, expected=f"a model folder with {CONFIG_FILE}", got="a folder without")
    if not content.sizes:
        _check_config(content)
        expected = f"weights in either {SINGLE_FILE_NAME} or {INDEX_NAME}"
        raise refusal(content.place, expected=expected, got="none that could be read")
    model_type = config.get("model_type")
    if model_type in CLIP_MODEL_TYPES:
        return _check_text_encoder(content, config, file)
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return _check_language_model(content, ARCHITECTURES[model_type], config, file)
    return _check_config(content)


def _check_config(content: StoredContent) -> tuple[str, ...]:
    """Whether a config means something to Mila."""
    if content.config is None or content.config_file is None:
        return ()
    try:
        meaning_of(content.config_file, content.config)
    except UnknownArchitectureError as error:
        return (f"held against no model: {content.words_of(error)}",)
    return ()


def _check_file(_: StoredContent) -> tuple[str, ...]:
    """Weights by themselves: nothing says what they should be."""
    return (f"held against no model: a file by itself has no {CONFIG_FILE}; name a model folder for that",)


def _check_language_model(
    content: StoredContent,
    architecture: Architecture,
    config: Mapping[str, Any],
    file: Path,
) -> tuple[str, ...]:
    found = architecture.interpret(config, file, {})
    require_plannable(file, found.config)
    names = compare(header_tensors(content), architecture, found.config, head_is_decided=False)
    if content.is_on_hub:
        return (*found.notes, *names.notes)
    table = _table_beside_head(content, names, found.config)
    notes = (*found.notes, *check_vocabulary(file.parent, found.config.vocab_size), *names.notes)
    if table is None:
        return notes
    sides = [Side(content, content.tensors[name]) for name in (table, HEAD)]
    values = compare_values(*sides, tolerance=0.0)
    if values.differing:
        raise CheckpointError(
            f"{file}: says that the head is the token table, and the weights have a {HEAD} that differs from {table}; "
            "pass tie_word_embeddings=False to use it, or True to use the table"
        )
    return (*notes, f"{HEAD} equals {table}: loading keeps it once")


def _table_beside_head(content: StoredContent, names: NameMap, config: LanguageModelConfig) -> str | None:
    """The name of the token table, where the config ties the head to it and the file stores both."""
    if not config.tie_word_embeddings or HEAD not in content.tensors:
        return None
    table = names.pieces[TABLE][0].name
    if table not in content.tensors or incomparable(content.tensors[table], content.tensors[HEAD]):
        return None
    return table


def _check_text_encoder(content: StoredContent, config: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    found = clip_text_folder(file.parent, dict(config), ())
    names = compare_text_encoder(found, header_tensors(content))
    vocabulary = () if content.is_on_hub else check_vocabulary(found.path, found.config.vocab_size)
    return (*found.notes, *vocabulary, *names.notes)


def _check_gguf(content: StoredContent) -> tuple[str, ...]:
    """What ``mila import`` makes of the metadata, the names and the shapes."""
    if "general.architecture" not in content.metadata or content.metadata.get("general.type", "model") != "model":
        return ("names and shapes were not compared: the metadata describes no model",)
    try:
        with GgufSource(content.place) as source:
            return describe_model(source).notes
    except UnknownArchitectureError as error:
        return (f"names and shapes were not compared: {error}",)


def _check_archive(content: StoredContent) -> tuple[str, ...]:
    """Whether the parameters are those of the network that the archive describes."""
    config = content.config or {}
    if PARAMETERS not in content.files:
        return ()
    if config.get("class") not in (GptTransformer.__name__, LlamaTransformer.__name__):
        return (f"names and shapes were not compared: the network is a {shown(config.get('class'))}",)
    network = load_architecture(content.place)
    with SafetensorsFile(content.place / PARAMETERS) as source:
        LoadPlan(network, source)
    return ()


_CHECKS: Mapping[ContentKind, Callable[[StoredContent], tuple[str, ...]]] = MappingProxyType(
    {
        ContentKind.FOLDER: _check_folder,
        ContentKind.HUB: _check_folder,
        ContentKind.CONFIG: _check_config,
        ContentKind.SAFETENSORS: _check_file,
        ContentKind.INDEX: _check_file,
        ContentKind.GGUF: _check_gguf,
        ContentKind.ARCHIVE: _check_archive,
    }
)
