"""Model folders as the Hugging Face libraries write them: read, checked, and written."""
