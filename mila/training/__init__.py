"""Optimizers, schedules, tokenizers, data, and the trainer: what a training run needs beside its network."""

from mila.training.adamw import AdamW, AdamWConfig
from mila.training.checkpoint import (
    DataIdentity,
    TrainingState,
    load_checkpoint,
    read_training_state,
    save_checkpoint,
)
from mila.training.corpus import TextCorpus, TokenSplit, split_tokens, standard_library_sources
from mila.training.data import DataPosition, TokenBatches, bigram_loss, validation_batches
from mila.training.events import (
    CheckpointReport,
    StepReport,
    TrainingEvent,
    TrainingOutcome,
    ValidationReport,
)
from mila.training.measurement import BuildReport, measure_build
from mila.training.run_folder import RunFolder
from mila.training.sampling import sample_text
from mila.training.saved_model import load_architecture, load_model, load_tokenizer, save_model
from mila.training.schedules import ConstantSchedule, CosineSchedule, LinearSchedule, Schedule, schedule_from_json
from mila.training.tokenization import (
    BaseTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    tokenizer_from_json,
)
from mila.training.trainer import Trainer
from mila.training.trainer_config import TrainerConfig

__all__ = [
    "AdamW",
    "AdamWConfig",
    "BaseTokenizer",
    "BuildReport",
    "ByteTokenizer",
    "CharacterTokenizer",
    "CheckpointReport",
    "ConstantSchedule",
    "CosineSchedule",
    "DataIdentity",
    "DataPosition",
    "LinearSchedule",
    "RunFolder",
    "Schedule",
    "StepReport",
    "TextCorpus",
    "TokenBatches",
    "TokenSplit",
    "Tokenizer",
    "Trainer",
    "TrainerConfig",
    "TrainingEvent",
    "TrainingOutcome",
    "TrainingState",
    "ValidationReport",
    "bigram_loss",
    "load_architecture",
    "load_checkpoint",
    "load_model",
    "load_tokenizer",
    "measure_build",
    "read_training_state",
    "sample_text",
    "save_checkpoint",
    "save_model",
    "schedule_from_json",
    "split_tokens",
    "standard_library_sources",
    "tokenizer_from_json",
    "validation_batches",
]
