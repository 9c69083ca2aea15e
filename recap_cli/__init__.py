"""The terminal side of recap: flags in, text and figures out; knows nothing of tensors."""
