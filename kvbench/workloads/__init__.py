"""What is decoded: real prose, code, JSON and dialogue, a user's file, or conversations."""

from kvbench.workloads.corpora import KINDS
from kvbench.workloads.prompts import prompt_text, prompt_tokens, seeded_prompts

__all__ = ["KINDS", "prompt_text", "prompt_tokens", "seeded_prompts"]
