"""From files to a microbatch, a pure function of (seed, step, microbatch).

- `reading`: from files to documents; `tokenizer`: text to token ids.
- `encoding`: many documents on all cores, resumed; `token_files`: ids that others made.
- `tokens`: a job's tokens on disk, memory-mapped, and their hash.
- `streams`: samples without a number or an end, read by a process into blocks.
- `samples`: windows of tokens or of whole documents, or items of a dataset.
- `order`: which comes when; `sampler`: what a microbatch holds.
- `job_data`: all that a process needs to know of a job's data.
- `export`: a run's tokenizer for Hugging Face.
"""
