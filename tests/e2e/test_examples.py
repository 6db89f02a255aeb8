"""Examples that the how-to guides go through, made shorter: kills, and the reference's bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples import chats, lora, parquet, pictures

from planaria.job.parse import load_job
from planaria.runtime.launch.export import export_run
from tests.e2e.conftest import EXAMPLES, Reference, Run
from tests.e2e.jobs import make_job
from tests.proof import rest_in_proof


def test_a_model_is_pretrained_on_parquet_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, reference: Reference
) -> None:
    parquet.write(tmp_path / "corpus", most_files=8)
    monkeypatch.chdir(tmp_path)
    short = ("steps=4", "warmup_steps=1", "decay_steps=2", "global_batch=8", "sequence_length=16")
    job = load_job(
        EXAMPLES / "qwen3.toml", [*(f"train.{change}" for change in short), "eval.every=2", "eval.microbatches=2"]
    )
    outcome = run(job, "kill:node=2,step=2,at=backward")
    outcome.assert_same_bits(reference(job))
    assert sorted(outcome.evaluated) == [2, 4]
    assert len(outcome.events("node_lost")) == 1


@pytest.mark.parametrize("optimizer_state", rest_in_proof(["spread", "whole"]))
def test_stages_on_several_devices_lose_one_of_them_and_a_node(
    optimizer_state: str, run: Run, reference: Reference
) -> None:
    short = ("train.steps=5", "train.warmup_steps=1", "train.global_batch=16")
    job = load_job(EXAMPLES / "devices.toml", [*short, f"cluster.optimizer_state={optimizer_state}"])
    assert (job.cluster.nodes, job.cluster.devices_per_node, job.cluster.devices_per_stage) == (2, 4, 2)
    outcome = run(job, "kill:node=1,step=2,at=backward,device=3", "kill:node=0,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    first, *others = [(event["node"], event["device"]) for event in outcome.events("device_lost")]
    assert first == (1, 3)
    assert {node for node, _ in others} <= {0}, "the processes of a node that is killed do not end all at once"
    assert [event["node"] for event in outcome.events("node_lost")] == [0]


@pytest.mark.proof
def test_devices_that_share_microbatches_lose_one_of_them_and_a_node(run: Run, reference: Reference) -> None:
    job = load_job(EXAMPLES / "tensor.toml", ["train.steps=5", "train.warmup_steps=1", "train.global_batch=8"])
    outcome = run(job, "kill:node=1,step=2,at=exchange,device=1", "kill:node=1,step=4,at=sync")
    outcome.assert_same_bits(reference(job))
    first, *others = [(event["node"], event["device"]) for event in outcome.events("device_lost")]
    assert first == (1, 1)
    assert {node for node, _ in others} <= {1}, "the processes of a node that is killed do not end all at once"
    assert [event["node"] for event in outcome.events("node_lost")] == [1]


OF_TWO_SOURCES = (
    "data.source=python-stdlib",
    'data.messages=""',
    'data.chat_template=""',
    "data.packing=pad",
    'data.sources=[{source="chats.jsonl", messages="messages", chat_template="chatml"}, {source="texts.jsonl"}]',
)


@pytest.mark.parametrize("changes", rest_in_proof([OF_TWO_SOURCES, ()]), ids=["chats and texts", "chats"])
def test_a_model_learns_what_is_answered_in_chats(
    changes: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    reference: Reference,
) -> None:
    chats.write(tmp_path / "chats.jsonl", num_chats=200)
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "{n} worms"}}\n' for n in range(100)))
    monkeypatch.chdir(tmp_path)
    job = load_job(
        EXAMPLES / "chats.toml",
        [
            "train.steps=3", "train.warmup_steps=1", "train.global_batch=8", "eval.every=3", "eval.microbatches=1",
            "model.config.hidden_size=16", "model.config.intermediate_size=32", *changes,
        ],
    )  # fmt: skip
    outcome = run(job, "kill:node=1,step=2,at=backward")
    outcome.assert_same_bits(reference(job))
    assert sorted(outcome.evaluated) == [3]
    assert len(outcome.events("node_lost")) == 1
    export_run(outcome.result.folder, tmp_path / "exported")
    assert "<|im_start|>" in (tmp_path / "exported" / "chat_template.jinja").read_text()


def test_adapters_of_a_local_llama_learn_from_chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, reference: Reference
) -> None:
    lora.write(tmp_path / "my-llama", width=16, depth=4)
    chats.write(tmp_path / "chats.jsonl", num_chats=200)
    monkeypatch.chdir(tmp_path)
    of_train = ("train.steps=3", "train.warmup_steps=1", "train.global_batch=8")
    of_eval = ("eval.every=3", "eval.microbatches=1")
    weights = f"model.weights={tmp_path / 'my-llama'}"
    job = load_job(EXAMPLES / "lora.toml", [*of_train, *of_eval, weights])
    outcome = run(job, "kill:node=1,step=2,at=backward")
    outcome.assert_same_bits(reference(job))
    assert sorted(outcome.evaluated) == [3]
    assert len(outcome.events("node_lost")) == 1


def test_a_resnet_learns_a_folder_of_images_to_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, reference: Reference
) -> None:
    pictures.write(tmp_path / "pictures", num_train=48, num_validation=12)
    monkeypatch.chdir(tmp_path)
    places = (f"data.config.path={tmp_path}/pictures/train", f"eval.config.path={tmp_path}/pictures/validation")
    short = ("train.global_batch=16", "eval.every=2", "eval.microbatches=1", "eval.stop_at.value=0.2")
    job = load_job(EXAMPLES / "resnet.toml", [*places, *short])
    outcome = run(job, "kill:node=1,step=2,at=backward")  # of two microbatches, nodes 0 and 1 have one in any plan
    outcome.assert_same_bits(reference(job))
    assert outcome.summary["steps"] < job.train.steps
    assert "eval.stop_at" in outcome.summary["message"]
    assert len(outcome.events("node_lost")) == 1


def test_callbacks_write_samples_and_stop_early(text: Path, run: Run) -> None:
    evaluated = {"eval__every": 1, "eval__share": 0.1, "eval__microbatches": 1, "eval__keep_best": False}
    job = make_job(
        text,
        train__steps=40,
        train__learning_rate=1e-30,
        **evaluated,
        run__checkpoint_every=0,
        run__callbacks=["callbacks:sample", "callbacks:stop_when_it_stays"],
    )
    outcome = run(job, "kill:node=1,step=2,at=backward")
    assert outcome.result.message.startswith("stopped by a callback: the last 3 evaluations were no better")
    assert not [note for note in outcome.events("note") if "callback" in note["text"]]
    samples = (outcome.result.folder / "samples.txt").read_text().splitlines()
    assert samples
    assert all(sample.startswith("step ") and "'def " in sample for sample in samples)
