"""What tensors a model is made of.

- `grouping`: divides parameters into groups; `lora`: adapters beside a model's own, which alone are trained.
- `virtual_shards`: layers computed shard by shard; `split_plans`: what of a Hugging Face model is split so.
- `batch_norms`: running statistics.
"""
