"""zoo tells which open LLM to build a vision-language model on."""
