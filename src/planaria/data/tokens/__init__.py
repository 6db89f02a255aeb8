"""A job's tokens: made once for each run folder, then memory-mapped by every worker.

- `preparation`: writes them, or finds them in the run folder or in the cache; `encoding`: on all cores, resumed.
- `token_set`: as they lie in a folder, opened; their hash. `token_files`: ids that others made.
- `tokenizer`: text to token ids.

Of the data's packages it imports `reading` alone.
"""
