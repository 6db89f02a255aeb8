"""Weights that others have trained.

- `folder`: a Hugging Face folder, read tensor by tensor.
- `hub`: where such a folder is that has a name on the Hugging Face hub.
"""
