"""Lossless speculative decoding for vision-language models; knows nothing of terminals."""
