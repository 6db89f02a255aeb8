"""Chats and pairs become the texts that transformers gives them, and only what is answered is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows_files import json_lines, parquet

from planaria.data.reading.sources import DataError
from planaria.data.tokens.preparation import prepare_tokens
from planaria.data.tokens.token_set import TokenSet
from planaria.data.tokens.tokenizer import SEPARATOR_ID
from planaria.job.sections.data import DataSection, OnBadRow, Packing

CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Is 虫 a worm?"}, {"role": "assistant", "content": "Yes – 虫."}]},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "1"},
            {"role": "user", "content": "Two?"},
            {"role": "assistant", "content": "2"},
        ]
    },
]
MARKED = (
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "<{% generation %}{{ message.content }}>{% endgeneration %}{% else %}{{ message.content }}|{% endif %}{% endfor %}"
)


def prepared(source: Path, tmp_path: Path, **fields: Any) -> TokenSet:
    return prepare_tokens(DataSection(source=str(source), **fields), tmp_path / "prepared")


def refusal(source: Path, tmp_path: Path, **fields: Any) -> str:
    with pytest.raises(DataError) as caught:
        prepared(source, tmp_path, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def documents(tokens: TokenSet) -> list[tuple[str, str]]:
    """Returns each document's text, and what is learned of it; a separator is "$"."""

    def text(ids: np.ndarray[Any, Any]) -> str:
        return bytes(ord("$") if one == SEPARATOR_ID else int(one) for one in ids).decode()

    found = []
    for begin, end in zip([0, *tokens.documents[:-1]], tokens.documents, strict=True):
        ids = tokens.ids[begin:end]
        assert tokens.answers is not None
        found.append((text(ids), text(ids[tokens.answers[begin:end] == 1])))
    return found


def test_what_the_assistant_says_is_learned(tmp_path: Path) -> None:
    source = json_lines(tmp_path / "chats.jsonl", CHATS)
    (one, its_answer), (two, its_answers) = documents(
        prepared(source, tmp_path, messages="messages", chat_template="chatml")
    )
    assert one == "<|im_start|>user\nIs 虫 a worm?<|im_end|>\n<|im_start|>assistant\nYes – 虫.<|im_end|>\n"
    assert its_answer == "Yes – 虫.<|im_end|>\n"
    assert two.startswith("<|im_start|>system\nBe brief.")
    assert its_answers == "1<|im_end|>\n2<|im_end|>\n"


def test_a_template_may_mark_what_is_learned(tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(MARKED)
    source = parquet(tmp_path / "chats.parquet", CHATS)
    found = documents(prepared(source, tmp_path, messages="messages", chat_template=str(tmp_path / "template.jinja")))
    assert found == [("Is 虫 a worm?|<Yes – 虫.>", "Yes – 虫.>"), ("Be brief.|One?|<1>Two?|<2>", "1>2>")]


def test_pairs_end_with_the_separator(tmp_path: Path) -> None:
    rows = [{"ask": "Worm? ", "say": "Yes."}, {"ask": "", "say": "No."}]
    source = json_lines(tmp_path / "pairs.jsonl", rows)
    fields = {"prompt": "ask", "completion": "say"}
    assert documents(prepared(source, tmp_path, **fields)) == [("Worm? Yes.$", "Yes.$"), ("No.$", "No.$")]
    assert documents(prepared(source, tmp_path, eos=False, **fields)) == [("Worm? Yes.", "Yes."), ("No.", "No.")]


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer that has merges across what a template writes, and a template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["Yes – 虫. Is 虫 a worm? Be brief. One? Two?\n" * 9], trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>")])
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
        "chat_template": "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}"
        "{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_ids_are_those_of_apply_chat_template(chat_tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = json_lines(tmp_path / "chats.jsonl", CHATS)
    tokens = prepared(source, tmp_path, messages="messages", tokenizer=str(chat_tokenizer))
    theirs = AutoTokenizer.from_pretrained(str(chat_tokenizer))
    assert tokens.answers is not None
    begin = 0
    for chat, end in zip(CHATS, tokens.documents.tolist(), strict=True):
        assert tokens.ids[begin:end].tolist() == theirs.apply_chat_template(chat["messages"], return_dict=False)
        learned = theirs.decode(tokens.ids[begin:end][tokens.answers[begin:end] == 1])
        answers = [message["content"] for message in chat["messages"] if message["role"] == "assistant"]
        assert learned.replace(" ", "") == "".join(f"{answer}</s>\n" for answer in answers).replace(" ", "")
        begin = end
    assert (tmp_path / "prepared" / "chat_template.jinja").read_text().startswith("{{ bos_token }}")


def test_rows_without_an_answer_are_refused_or_counted(tmp_path: Path) -> None:
    rows: list[Any] = [
        *CHATS,
        {"messages": [{"role": "user", "content": "Anyone?"}]},
        {"messages": [{"content": "Who?"}]},
        {"messages": "a text"},
    ]
    source = json_lines(tmp_path / "chats.jsonl", rows)
    fields = {"messages": "messages", "chat_template": "chatml"}
    assert "row 3: 'messages' has no message of the role 'assistant'" in refusal(source, tmp_path, **fields)
    found = prepared(source, tmp_path, on_bad_row=OnBadRow.SKIP, **fields)
    assert (found.about.num_documents, found.about.bad_rows) == (2, 3)
    source = json_lines(tmp_path / "pairs.jsonl", [{"ask": "a", "say": ""}])
    assert "row 1: 'say' is empty" in refusal(source, tmp_path, prompt="ask", completion="say")


def test_refusals_name_the_field_and_the_remedy(tmp_path: Path) -> None:
    source = json_lines(tmp_path / "chats.jsonl", CHATS)
    assert "has no chat template" in (told := refusal(source, tmp_path, messages="messages"))
    assert 'to "chatml"' in told
    assert "Set data.messages to 'messages'" in refusal(source, tmp_path, messages="chat", chat_template="chatml")
    (tmp_path / "broken.jinja").write_text("{% for %}")
    told = refusal(source, tmp_path, messages="messages", chat_template=str(tmp_path / "broken.jinja"))
    assert "is no template of Jinja (line 1" in told
    (tmp_path / "last.jinja").write_text("{% for m in messages %}{{ m.content }}{{ '!' if loop.last }}{% endfor %}")
    told = refusal(source, tmp_path, messages="messages", chat_template=str(tmp_path / "last.jinja"))
    assert "Mark them in the template by {% generation %}" in told
    (tmp_path / "text.txt").write_text("some text")
    assert "has no columns" in refusal(tmp_path / "text.txt", tmp_path, prompt="a", completion="b")
    np.save(tmp_path / "ids.npy", np.arange(9))
    assert "do not say where documents end" in refusal(tmp_path / "ids.npy", tmp_path, packing=Packing.PAD)


def test_what_changes_the_tokens_changes_their_key(tmp_path: Path) -> None:
    source = json_lines(tmp_path / "chats.jsonl", [{**chat, "text": "a", "other": "b"} for chat in CHATS])
    (tmp_path / "template.jinja").write_text(MARKED)
    given: list[dict[str, Any]] = [
        {}, {"packing": Packing.PAD}, {"column": "other"}, {"eos": False}, {"on_bad_row": OnBadRow.SKIP},
        {"messages": "messages", "chat_template": "chatml"}, {"prompt": "text", "completion": "other"},
        {"messages": "messages", "chat_template": str(tmp_path / "template.jinja")},
        {"prompt": "other", "completion": "text"},
    ]  # fmt: skip
    keys = {prepared(source, tmp_path, **fields).about.key for fields in given}
    (tmp_path / "template.jinja").write_text(MARKED.replace("|", "/"))
    keys.add(prepared(source, tmp_path, **given[-2]).about.key)
    assert len(keys) == len(given) + 1
