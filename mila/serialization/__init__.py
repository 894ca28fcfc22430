"""Files and names, nothing of models: safetensors reader and writer, shards, archives, atomic writing."""

from mila.serialization.archive import ArchiveReader, ArchiveWriter, ModelArchive, TensorDeclaration
from mila.serialization.atomic import AtomicFile, write_file_atomically
from mila.serialization.atomic_folder import AtomicFolder, recover_folder, replace_folder_atomically
from mila.serialization.dtypes import FORMAT_DTYPES, FormatDType, format_dtype
from mila.serialization.header import DEFAULT_HEADER_LIMIT, TensorEntry
from mila.serialization.manifest import ArchiveMode
from mila.serialization.resume import newest_complete
from mila.serialization.safetensors_reader import SafetensorsFile
from mila.serialization.safetensors_writer import SafetensorsWriter, save_tensors
from mila.serialization.sharded import ShardedTensors, open_tensors
from mila.serialization.tensor_source import TensorSource

__all__ = [
    "DEFAULT_HEADER_LIMIT",
    "FORMAT_DTYPES",
    "ArchiveMode",
    "ArchiveReader",
    "ArchiveWriter",
    "AtomicFile",
    "AtomicFolder",
    "FormatDType",
    "ModelArchive",
    "SafetensorsFile",
    "SafetensorsWriter",
    "ShardedTensors",
    "TensorDeclaration",
    "TensorEntry",
    "TensorSource",
    "format_dtype",
    "newest_complete",
    "open_tensors",
    "recover_folder",
    "replace_folder_atomically",
    "save_tensors",
    "write_file_atomically",
]
