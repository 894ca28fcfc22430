"""Files and names, nothing of models: safetensors reader and writer, shards, archives, atomic writing."""

from mila.serialization.archive import ArchiveReader, ArchiveWriter, ModelArchive, TensorDeclaration
from mila.serialization.atomic import AtomicFile, write_file_atomically
from mila.serialization.atomic_folder import AtomicFolder, recover_folder, replace_folder_atomically
from mila.serialization.dtypes import FORMAT_DTYPES, FormatDType, format_dtype
from mila.serialization.export_folder import ExportFolder
from mila.serialization.header import DEFAULT_HEADER_LIMIT, TensorEntry
from mila.serialization.manifest import ArchiveMode
from mila.serialization.model_folder import open_tensors
from mila.serialization.resume import holds_checkpoints, newest_complete
from mila.serialization.safetensors_reader import SafetensorsFile
from mila.serialization.safetensors_writer import SafetensorsWriter, save_tensors
from mila.serialization.sharded import ShardedTensors
from mila.serialization.sharded_writer import ShardedWriter
from mila.serialization.sizes import parse_size
from mila.serialization.strict_json import read_json_object
from mila.serialization.tensor_source import TensorSource
from mila.serialization.tensor_writer import TensorWriter

__all__ = [
    "DEFAULT_HEADER_LIMIT",
    "FORMAT_DTYPES",
    "ArchiveMode",
    "ArchiveReader",
    "ArchiveWriter",
    "AtomicFile",
    "AtomicFolder",
    "ExportFolder",
    "FormatDType",
    "ModelArchive",
    "SafetensorsFile",
    "SafetensorsWriter",
    "ShardedTensors",
    "ShardedWriter",
    "TensorDeclaration",
    "TensorEntry",
    "TensorSource",
    "TensorWriter",
    "format_dtype",
    "holds_checkpoints",
    "newest_complete",
    "open_tensors",
    "parse_size",
    "read_json_object",
    "recover_folder",
    "replace_folder_atomically",
    "save_tensors",
    "write_file_atomically",
]
