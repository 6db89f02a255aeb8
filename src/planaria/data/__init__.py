"""From files of text to the tokens of a microbatch, a pure function of (seed, step, microbatch).

- `sources`: which files; `text`: whether a file can be trained on; `tokenizer`: text to token ids.
- `tokens`: a job's tokens on disk, memory-mapped; `sampler`: which tokens a microbatch holds.
- `export`: a run's tokenizer for Hugging Face.

A new source of samples yields token ids to `tokens`; what a microbatch holds stays `sampler`'s.
"""
