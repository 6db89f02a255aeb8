"""What a sampler deals: samples that are numbered, as batches of tensors by name.

- `samples`: what the rest must know of them.
- `windows`: pieces of the tokens, labelled by the tokens that follow, or with some of them hidden.
- `examples`: whole documents, filled up: chats, pairs, texts; `translations`: pairs for an encoder and a decoder.
- `items`: what the user's Python functions give, as tensors; `dataset`: those of a map-style dataset.
"""
