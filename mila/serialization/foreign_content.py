"""What a file is whose first bytes are not those of its kind: the usual accidents of downloading, by their names."""

from __future__ import annotations

INCOMPLETE = "is the download complete?"
CONVERT_PICKLES = (
    "convert it with transformers: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER, "
    "safe_serialization=True)"
)
CONVERT_GGUF = "convert it with: mila import FILE NEW_FOLDER"

_STARTS = (
    (b"version https://git-lfs", "a Git LFS pointer instead of the file: incomplete download?"),
    (b"<", "HTML or XML instead of the file: incomplete download?"),
    (b'{"', "JSON instead of the file: an error message, or an incomplete download?"),
    (b"pk\x03\x04", f"a zip archive, as PyTorch's .bin and .pt files are; {CONVERT_PICKLES}"),
    (b"\x80\x02", f"a pickle, as PyTorch's .bin and .pt files are; {CONVERT_PICKLES}"),
    (b"gguf", f"a GGUF file; {CONVERT_GGUF}"),
    (b"\xef\xbb\xbf", "a byte order mark before the text; save the file as UTF-8 without one"),
    (b"\xff\xfe", "text in UTF-16 with a byte order mark; save the file as UTF-8 without one"),
    (b"\xfe\xff", "text in UTF-16 with a byte order mark; save the file as UTF-8 without one"),
)


def foreign_content_hint(start: bytes) -> str | None:
    """Return what a file is whose first bytes are `start`, if it is something well known."""
    stripped = start[:64].lstrip().lower()
    for signature, name in _STARTS:
        if stripped.startswith(signature):
            return name
    return None
