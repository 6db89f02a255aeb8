"""Exports a run's tokenizer as files that `AutoTokenizer.from_pretrained` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planaria.data.tokens.tokenizer import MASK_ID, MASKS, PAD_ID, PADS, SEPARATOR_ID, SEPARATORS

_BYTES_SPECIAL = {SEPARATOR_ID: SEPARATORS[0], MASK_ID: MASKS[0], PAD_ID: PADS[0]}


def export_tokenizer(file: Path | None, folder: Path, *, most_tokens: int, chat_template: Path | None = None) -> None:
    """Writes tokenizer.json and tokenizer_config.json, and a chat template if there is one.

    Args:
        file: a tokenizer.json; None: the tokenizer of bytes.
        folder: made if absent.
        most_tokens: that the model takes at once.
        chat_template: a file of Jinja; it has the name that transformers looks for.
    """
    from tokenizers import Tokenizer

    tokenizer: Any = _bytes_tokenizer() if file is None else Tokenizer.from_file(str(file))
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": most_tokens}
    ids = tokenizer.get_vocab(with_added_tokens=True)
    for field, names in (("eos_token", SEPARATORS), ("mask_token", MASKS), ("pad_token", PADS)):
        if found := [name for name in names if name in ids]:
            config[field] = found[0]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    if chat_template is not None:
        (folder / chat_template.name).write_bytes(chat_template.read_bytes())


def _bytes_tokenizer() -> Any:
    """Makes the tokenizer with the ids of `ByteTokenizer`: a byte each, then separator, mask and pad."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {letter: byte for byte, letter in enumerate(_letters())} | {n: i for i, n in _BYTES_SPECIAL.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in _BYTES_SPECIAL.values()])
    return tokenizer


def _letters() -> list[str]:
    """Returns each byte's letter, as GPT-2 has them: printable ones for themselves, others from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
