"""Models as lists of layers.

- `model`: what the rest must know of one; `load`: from [model] to one.
- `recording`: what a model's own forward does between its blocks; `cutting`: that cut into layers, whoever wrote it.
- `huggingface`: any model of transformers, cut by `cutting`; its `config`, its `weights` in a folder, its `comparison`
  with the whole.
- `function`: a user's Python function, that returns layers, or a module that `cutting` cuts.
- `tensors`: parameters and their groups, adapters, running statistics; `initial`: random numbers of first weights.
- `training`: optimizers, and what each parameter is trained with. `loss`; `export`: weights as a Hugging Face folder.
"""
