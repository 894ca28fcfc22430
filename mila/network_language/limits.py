"""How much a definition may ask for, so that text from a stranger costs a bounded amount of time and memory."""

from __future__ import annotations

LARGEST_SOURCE_BYTES = 64 * 1024
MOST_SOURCE_LINES = 4096
MOST_SYNTAX_NODES = 16_384
DEEPEST_SYNTAX = 96
MOST_ITEMS = 1024
"""Items of one container, and arguments of one call."""
LONGEST_STRING_BYTES = 16 * 1024
LARGEST_LITERAL_BITS = 256
LARGEST_ARGUMENT = 2**63 - 1

MOST_NODES = 4096
MOST_EDGES = 16_384
MOST_PORTS = 32
"""Inputs or outputs of a network, and ports on one side of an operator."""
LOWEST_RANK, HIGHEST_RANK = 2, 4
LARGEST_DIMENSION = 1_048_576
MOST_ELEMENTS = 268_435_456
"""Elements of one tensor, for one row of the batch where the batch is free."""
LARGEST_BATCH_MULTIPLE = 1024
MOST_STATE_BYTES = 64 * 1024**3
MOST_PARAMETERS = 65_536
"""Parameter tensors of a network."""
MOST_SWEEPS = 256
LONGEST_NAME = 64
LARGEST_PLAN_BYTES = 16 * 1024**2
