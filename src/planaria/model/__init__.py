"""Models as lists of layers.

- `model`, `load`: what the rest must know; from [model] to one; `gpt2`, `bert`, `llama`, `huggingface`: families.
- `function`: a user's Python function; `grouping`: parameters to groups.
- `initial`, `weights`, `loss`, `export`.

A new family is a module with a `build` function and a line in `load`.
"""
