"""`planaria export`: where it cannot write, it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from planaria import api
from planaria.job.errors import UserError
from planaria.job.parse import job_json, parse_job
from planaria.runtime.launch import export as exporting
from planaria.runtime.run_folder.run_folder import RunFolder

JOB = """
[model]
type = "gpt2"
[data]
source = "python-stdlib"
[train]
steps = 1
global_batch = 4
microbatch = 2
sequence_length = 16
[cluster]
nodes = 2
"""


@pytest.mark.parametrize("target", ["file", "file/below"])
def test_a_target_that_cannot_be_written_is_refused(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("file").write_text("taken")
    folder = RunFolder.create(tmp_path, "run")
    folder.job.write_bytes(job_json(parse_job(JOB, origin="job.toml")))
    monkeypatch.setattr(exporting, "newest", lambda checkpoints: (checkpoints, None, []))
    monkeypatch.setattr(exporting, "read_parameters", lambda checkpoint, manifest: {})
    monkeypatch.setattr(exporting, "export", lambda job, parameters, to, **ids: to.mkdir(parents=True, exist_ok=True))
    with pytest.raises(UserError, match="it cannot be written: "):
        exporting.export_run(folder.path, tmp_path / target)
    exporting.export_run(folder.path, tmp_path / "new")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {"flat": 0, "worm": 1, "[UNK]": 2, "</s>": 3, "<pad>": 4}
    made = Tokenizer(models.WordLevel(words, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_the_tokenizer_goes_with_the_model_from_any_folder(
    kind: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("flat worm Würmer\n" * 50)
    given = {"bytes": "bytes", "file": "words.json"}[kind]
    changes = ["data.source=text.txt", f"data.tokenizer={given}", "cluster.nodes=2", "run.name=run",
               "model.config={n_layer=1, n_embd=8, n_head=2, n_positions=16}"]  # fmt: skip
    folder = api.reference(parse_job(JOB, overrides=changes, origin="job.toml"), name="run").folder.absolute()
    tokenizer.unlink()
    Path("text.txt").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    exporting.export_run(folder, Path("model"), step=1)
    with pytest.raises(UserError, match=r"--step 2: run folder .* has no checkpoint of it \(there are: 1\)"):
        exporting.export_run(folder, Path("other"), step=2)
    read = AutoTokenizer.from_pretrained("model")
    model = AutoModelForCausalLM.from_pretrained("model")
    text = "flat worm Würmer\n"
    if kind == "bytes":
        assert read.encode(text) == list(text.encode())
        assert read.decode(read.encode(text)) == text
        assert read.encode("a<|endoftext|>") == [97, 256]
        assert (read.eos_token_id, read.mask_token_id, read.pad_token_id, len(read)) == (256, 257, 258, 259)
    else:
        assert read.encode(text) == [0, 1, 2]
        assert (read.eos_token_id, read.pad_token_id) == (3, 4)
    assert (model.config.eos_token_id, model.config.pad_token_id) == (read.eos_token_id, read.pad_token_id)
    assert model.generation_config.eos_token_id == read.eos_token_id
