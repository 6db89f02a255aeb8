"""What tensors a model is made of.

- `grouping`: divides parameters into groups; `lora`: adapters beside a model's own, which alone are trained.
- `batch_norms`: running statistics.
"""
