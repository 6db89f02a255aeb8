"""From files to documents, in bounded memory.

- `sources`: which files, from a path, a folder or a glob; `python_stdlib`: those of a source that has a name.
- `remote`: those of a URL, fetched; `hub`: those of a dataset on the Hugging Face hub, by its name.
- `stream`: the first rows of what has no length, laid down.
- `text`: whether a file is what its name says; `rows`: its rows, and the texts in them.
- `chats`: what of a row is read: a text, a pair, or a chat by its template; and which part is learned.
"""
