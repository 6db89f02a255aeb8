"""From files to a microbatch, a pure function of (seed, step, microbatch).

- `reading`: from files to documents; `tokens`: from documents to token ids on disk, memory-mapped.
- `streams`: samples without a number or an end, read by a process into blocks.
- `samples`: windows of tokens or of whole documents, or items of a dataset.
- `order`: which comes when; `mixture`: from which of several sources; `sampler`: what a microbatch holds.
- `job_data`: all that a process needs to know of a job's data; `opening`: prepares them, or opens what is there.
- `images`: a folder of images as a dataset; `export`: a run's tokenizer for Hugging Face.
"""
