"""A policy in memory: its weights, tokenizer and precision, and its passes over batches within a memory budget."""
