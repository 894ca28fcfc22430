"""Optimizers, schedules, tokenizers and data: what a training run needs beside its network."""
