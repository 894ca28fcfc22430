"""Text from networks: prefill, decode, samplers, sessions, tokenizers."""
