"""What a CUDA device takes and rounds to, known without one; with ``SCRATCH_BYTES`` and ``PRODUCT_WORKSPACE_BYTES``."""

#: Every buffer and every arena of a CUDA device begins at a multiple of this many bytes: a block of its pool.
CUDA_ALIGNMENT = 512
#: Pinned buffers on the host that uploads and downloads go through, and the bytes of each.
STAGING_BUFFERS, STAGING_BYTES = 2, 4 << 20
