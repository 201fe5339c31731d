"""When it goes wrong: minifier, comparison with eager, ablation, bisecting. The core searches (src/debug)."""
