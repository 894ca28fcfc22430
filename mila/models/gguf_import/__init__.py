"""GGUF files as Hugging Face folders."""

from mila.models.gguf_import.importing import DTYPES, ImportReport, import_gguf

__all__ = ["DTYPES", "ImportReport", "import_gguf"]
