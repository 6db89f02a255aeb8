"""Models as lists of layers.

- `model`: what the rest must know of one; `load`: from [model] to one.
- `recording`: what a model's own forward does between its blocks; `cutting`: layers of that, of any module.
- `huggingface`: any model of transformers; its `config`, its `weights` in a folder, its `comparison` with the whole.
- `function`: a user's Python function, that returns layers, or a module to be cut.
- `tensors`: parameters and their groups, adapters, running statistics; `initial`: random numbers of first weights.
- `training`: optimizers, and what each parameter is trained with. `loss`; `export`: weights as a Hugging Face folder.
"""
