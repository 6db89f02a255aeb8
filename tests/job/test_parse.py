"""Parsing: what is accepted, what is refused, and that a refusal is always one line by `UserError`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planaria.job.errors import UserError
from planaria.job.parse import (
    changed_numbers,
    job_fingerprint,
    job_from_json,
    job_json,
    load_job,
    parse_job,
    validated,
)
from planaria.job.registry import PolicyName
from planaria.job.sections.cluster import Device, StageParallelism
from planaria.job.sections.data import Packing
from planaria.job.sections.train import LrSchedule, Numerics
from planaria.job.settings import Job
from planaria.job.suggestions import OTHER_NAMES
from tests.proof import examples

EXAMPLES = Path(__file__).parents[2] / "examples"

MINIMAL = """
[model]
type = "gpt2"
[train]
steps = 10
global_batch = 8
microbatch = 2
sequence_length = 16
[cluster]
nodes = 3
"""


def parse(*overrides: str) -> Job:
    return parse_job(MINIMAL, overrides=overrides, origin="job.toml")


def test_what_examples_are_goes_together() -> None:
    assert parse("data.messages=chats").data.windows is Packing.PAD
    assert parse("data.column=text").data.windows is Packing.ACROSS
    with pytest.raises(UserError, match=r"data.messages = 'a' does not go with data.prompt = 'b'"):
        parse("data.messages=a", "data.prompt=b", "data.completion=c")
    with pytest.raises(UserError, match=r"data.packing = 'across' would give windows without an answer"):
        parse("data.messages=a", "data.packing=across")


def test_defaults_are_filled_in() -> None:
    job = parse()
    assert job.data.source == "python-stdlib"
    assert job.train.numerics is Numerics.EXACT
    assert job.train.num_microbatches == 4
    assert job.resilience.fault_tolerance == 1
    assert job.cluster.device is Device.CPU
    assert job.resilience.policy is PolicyName.ADAPTIVE


def test_pipelines_that_cannot_be_had_are_refused() -> None:
    def refused(*overrides: str) -> str:
        with pytest.raises(UserError) as caught:
            parse("cluster.nodes=12", "train.global_batch=24", *overrides)
        return str(caught.value)

    shape = "resilience.nodes_per_pipeline=4"
    assert "asks for 4 x 4 nodes, but cluster.nodes = 12. Set it to 3" in refused(shape, "resilience.num_pipelines=4")
    assert "is below resilience.min_nodes_per_pipeline = 5" in refused(shape, "resilience.min_nodes_per_pipeline=5")
    assert "needs 3 pipelines" in refused(shape, "resilience.num_pipelines=2", "resilience.fault_tolerance=2")
    assert "makes 12 pipelines, and a step has 2 microbatches" in refused(
        "resilience.nodes_per_pipeline=1", "train.microbatch=12"
    )
    one_ring = parse(
        "cluster.nodes=3", "resilience.nodes_per_pipeline=3", "resilience.policy=redundancy"
    )  # an owner and its shadow are two replicas
    assert one_ring.resilience.nodes_per_pipeline == 3
    growing = parse("cluster.nodes={ least = 4, most = 8 }", shape, "resilience.num_pipelines=2")
    assert growing.resilience.num_pipelines == 2


def test_overrides_are_toml_or_else_plain_text() -> None:
    job = parse(
        "train.steps=7",
        "train.betas=[0.5, 0.6]",
        "data.source=/some/where/*.txt",
        'train.lr_schedule="linear"',
        "train.numerics=fast",
        "model.config.n_layer=4",
        "run.name = other",
    )
    assert job.train.steps == 7
    assert job.train.betas == (0.5, 0.6)
    assert job.data.source == "/some/where/*.txt"
    assert job.train.lr_schedule == LrSchedule.LINEAR
    assert job.train.numerics is Numerics.FAST
    assert job.model.config == {"n_layer": 4}
    assert job.run.name == "other"


def test_zones_are_dealt_out_in_turn() -> None:
    cluster = parse("cluster.zones=['a', 'b']").cluster
    assert [cluster.zone_of(node) for node in range(3)] == ["a", "b", "a"]
    assert parse().cluster.zone_of(3) == ""


def test_a_zone_may_be_named_for_each_node() -> None:
    cluster = parse("cluster.nodes=4", "cluster.zones=['a', 'a', 'b', 'a']").cluster
    assert [cluster.zone_of(node) for node in range(5)] == ["a", "a", "b", "a", "a"]


def test_suggested_names_are_a_jobs() -> None:
    sections = {field.name: field.type for field in msgspec.structs.fields(Job)}
    fields = {name for section in sections.values() for name in section.__struct_fields__}
    assert set(OTHER_NAMES.values()) <= fields | set(sections)


@pytest.mark.parametrize(
    ("nodes", "zones", "words"),
    [
        (4, ["a", "b", "c", "d", "e"], ["are 5 names, and cluster.nodes is 4", "set cluster.nodes = 5"]),
        (6, ["a", "a", "b"], ["name a zone twice", "Set ['a', 'b'], every zone once, or one zone for each of the 6"]),
        (4, ["a", "a"], ["name a zone twice", "Set ['a'], every zone once."]),
        (4, ["a"] * 4, ["name a zone twice"]),
    ],
)
def test_zones_that_cannot_be_meant_are_refused(nodes: int, zones: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse(f"cluster.nodes={nodes}", f"cluster.zones={zones}")
    for word in ("cluster.zones = ", *words):
        assert word in str(caught.value)


def test_agents_say_their_own_zones() -> None:
    with pytest.raises(UserError, match=r"cluster.zones = \['a'\] .*--zone"):
        parse("cluster.launcher=agents", "cluster.zones=['a']")


def test_the_last_override_wins() -> None:
    assert parse("train.steps=7", "train.steps=9").train.steps == 9


REFUSED = [
    ("train.step=3", ["train.step = 3", "no such field", "Did you mean train.steps?"]),
    ("trian.steps=3", ["trian", "no such section", "Did you mean train?"]),
    ("train.zzz=3", ["train.zzz", "Known: steps, global_batch"]),
    ("train.lr=3e-4", ["train.lr = 0.0003: there is no such field. Did you mean train.learning_rate?"]),
    ("train.batch-size=3", ["Did you mean train.global_batch?"]),
    ("train.seq_len=3", ["Did you mean train.sequence_length?"]),
    ("train.epochs=3", ["Did you mean train.steps? Steps are counted, not passes over the data."]),
    ("train.num_nodes=3", ["Did you mean cluster.nodes?"]),
    ("cluster.tokenizer=bytes", ["Did you mean data.tokenizer?"]),
    ("training.steps=3", ["there is no such section. Did you mean train?"]),
    ("data.tokenizer=https://host/tokenizer.json", ["data.tokenizer", "is a URL"]),
    ("model.weights=hf://gpt2", ["model.weights = 'hf://gpt2' names no model of the hub", "hf://OWNER/NAME"]),
    ("model.type=hf://gpt2", ["model.type = 'hf://gpt2' is a URL"]),
    ("run.folder=gs://bucket", ["run.folder = 'gs://bucket' is a URL", "files of this machine"]),
    ("resilience.failure_trace=file:///day.csv", ["resilience.failure_trace", "is a URL"]),
    ("train.steps=many", ["train.steps = 'many'", "expected a whole number"]),
    ("train.steps=1.5", ["train.steps = 1.5", "expected a whole number"]),
    ("train.steps=true", ["train.steps = True", "expected a whole number"]),
    ("train.learning_rate='a'", ["train.learning_rate = 'a'", "expected a number"]),
    ("model.type=3", ["model.type = 3", "expected a text"]),
    ("model.weights=3", ["model.weights = 3", "expected a text"]),
    ("model.config=3", ["model.config = 3", "expected a table"]),
    ("model.config.a=nan", ["model.config.a = nan", "finite"]),
    ("model.config.day=2020-01-01", ["model.config.day", "date or time"]),
    ("train.betas=[0.9]", ["train.betas = [0.9]", "list of 2 numbers"]),
    ("train.activation_checkpointing=1", ["train.activation_checkpointing = 1", "true or false"]),
    ("train.lr_schedule=cosin", ['"constant", "linear", "cosine"', '"module:function"', "Did you mean cosine?"]),
    ("train.decay_steps=3", ["train.decay_steps = 3", "wsd"]),
    ("train.optimizer=sgdd", ["train.optimizer = 'sgdd'", '"adamw" or "adam"', "Did you mean sgd?"]),
    ("train.momentum=0.5", ["train.momentum = 0.5", 'optimizer = "adamw"', "it heeds betas, eps, weight_decay"]),
    ("train.momentum=1", ["train.momentum = 1", "[0, 1)"]),
    ("train.nesterov=true", ["train.nesterov = True", "Leave it out"]),
    ("train.parameters=3", ["train.parameters = 3", "a list of tables"]),
    ("train.parameters=[3]", ["train.parameters[0] = 3"]),
    ("train.parameters=[{}]", ["train.parameters[0].match is missing"]),
    ("train.parameters=[{match='*', decay=1}]", ["train.parameters[0].decay = 1", "no such field"]),
    ("model.lora={r=0}", ["model.lora.r = 0", "below 1"]),
    ("model.lora={rank=8}", ["model.lora.rank = 8", "no such field"]),
    ("model.lora={lora_dropout=1.0}", ["model.lora.lora_dropout = 1.0", "[0, 1)"]),
    ("model.virtual_shards=6", ["model.virtual_shards = 6", "no power of two", "Set it to 4, or to 0"]),
    ("model.virtual_shards=-2", ["model.virtual_shards = -2", "below 0"]),
    ("train.parameters=[{match='*', weight_decay=-1}]", ["train.parameters[0].weight_decay = -1"]),
    (
        "train.parameters=[{match='*', trainable=false, learning_rate_factor=0.1}]",
        ["train.parameters[0].learning_rate_factor = 0.1", "trainable = false", "Leave one"],
    ),
    ("cluster.device=tpu", ["cluster.device = 'tpu'", '"cpu" or "cuda"']),
    ("train.boundary_dtype=float16", ["train.boundary_dtype = 'float16'", '"float32" or "bfloat16"']),
    ("train.dtype=tf32", ["train.dtype = 'tf32'", "for CUDA devices", '"float32" or "bfloat16"']),
    ("train.boundary_dtype=bf16", ["train.boundary_dtype = 'bf16'", "Did you mean bfloat16"]),
    ("train.steps=0", ["train.steps = 0", "Set it to 1 or more"]),
    ("train.steps=99999999999999999999", ["train.steps", "out of range"]),
    ("train.microbatch=0", ["train.microbatch = 0"]),
    ("train.global_batch=9", ["train.global_batch = 9", "8 or 10", "or microbatch to 1"]),
    ("train.microbatch=16", ["train.global_batch = 8", "Set global_batch to 16, or microbatch to 8"]),
    ("train.warmup_steps=11", ["train.warmup_steps = 11", "train.steps = 10"]),
    ("train.warmup_steps=-1", ["train.warmup_steps = -1"]),
    ("train.betas=[0.9, 1.0]", ["train.betas = [0.9, 1.0]", "[0, 1)"]),
    ("train.min_lr_ratio=1.5", ["train.min_lr_ratio = 1.5", "[0, 1]"]),
    ("train.eps=0", ["train.eps = 0"]),
    ("train.learning_rate=0", ["train.learning_rate = 0"]),
    ("train.learning_rate=inf", ["train.learning_rate = inf", "finite"]),
    ("train.weight_decay=-0.1", ["train.weight_decay = -0.1"]),
    ("train.clip_norm=-1", ["train.clip_norm = -1"]),
    ("train.seed=-1", ["train.seed = -1"]),
    ("data.mask_probability=0", ["data.mask_probability = 0"]),
    (
        "data.config={size=3}",
        ["data.config = {'size': 3}", "data.source = 'python-stdlib' is none"],
    ),
    ("eval.config={size=3}", ["eval.config = {'size': 3} goes with a function"]),
    ("eval.source='images:test'", ["eval.source = 'images:test' is of another kind", "for both"]),
    ("train.sequence_length=0", ["train.sequence_length is missing", "Add sequence_length to [train]"]),
    ("train.sequence_length=-1", ["train.sequence_length = -1"]),
    ("data.mask_probability=1", ["data.mask_probability = 1"]),
    ("data.source=''", ["data.source = ''"]),
    ("data.prompt=ask", ["data.prompt = 'ask' goes with data.completion"]),
    ("data.chat_template=chatml", ["data.chat_template = 'chatml' is for chats", "data.messages"]),
    ("data.too_long=drop", ["data.too_long = 'drop' is for chats", 'data.packing = "pad"']),
    ("data.packing=none", ["data.packing = 'none'", '"across" or "apart" or "pad"']),
    ("cluster.nodes=0", ["cluster.nodes = 0"]),
    ("cluster.nodes={least=0, most=4}", ["cluster.nodes.least = 0", "1 or more"]),
    ("cluster.nodes={least=4, most=3}", ["cluster.nodes.most = 3", "below cluster.nodes.least = 4", "4 or more"]),
    ("cluster.nodes={least=4}", ["cluster.nodes.most is missing", "whole number"]),
    ("cluster.nodes={least=4, max=8}", ["cluster.nodes.max = 8: there is no such field"]),
    ("cluster.nodes=many", ["cluster.nodes = 'many' is a text", "a whole number, or a table"]),
    ("budget.price_every_s=0", ["budget.price_every_s = 0"]),
    ("budget.total=5", ["budget.total = 5", "budget.price_command"]),
    ("cluster.port=65536", ["cluster.port = 65536", "1 to 65535"]),
    ("cluster.port=-1", ["cluster.port = -1"]),
    ("cluster.launcher=pbs", ["cluster.launcher = 'pbs'", '"local" or "agents" or "ray"']),
    ("cluster.ray={}", ["cluster.launcher = 'local' does not go with [cluster.ray]"]),
    ("cluster.host=0.0.0.0", ["cluster.host = '0.0.0.0'", 'cluster.launcher = "agents"']),
    ("cluster.host=::1", ["cluster.host = '::1'", "IPv4"]),
    ("cluster.zones=['a', ' ']", ["cluster.zones = ' '", "printable"]),
    ("cluster.zones=3", ["cluster.zones = 3", "list of texts"]),
    ("cluster.host=''", ["cluster.host = ''", "0.0.0.0"]),
    ("cluster.memory_gb=-1", ["cluster.memory_gb = -1"]),
    ("cluster.devices_per_node=0", ["cluster.devices_per_node = 0"]),
    ("cluster.devices_per_stage=0", ["cluster.devices_per_stage = 0"]),
    ("cluster.devices_per_stage=2", ["cluster.devices_per_stage = 2", "cluster.devices_per_node = 1", "divisor of 1"]),
    ("cluster.optimizer_state=spread", ["cluster.optimizer_state = 'spread'", "devices_per_node is 1", "2 or more"]),
    ("cluster.devices_per_stage=many", ["cluster.devices_per_stage = 'many'", '"auto", or a whole number']),
    ("resilience.audit=1.5", ["resilience.audit = 1.5", "is not a share from 0 to 1"]),
    ("resilience.fault_tolerance=-1", ["resilience.fault_tolerance = -1"]),
    ("resilience.fault_tolerance=3", ["needs 4 pipelines", "cluster.nodes = 3", "cluster.nodes = 4 or more"]),
    ("resilience.min_nodes_per_pipeline=2", ["(4 nodes)", "fault_tolerance = 0"]),
    ("resilience.num_pipelines=2", ["resilience.num_pipelines = 2", "goes with resilience.nodes_per_pipeline"]),
    ("resilience.nodes_per_pipeline=4", ["asks for 1 x 4 nodes", "cluster.nodes = 4 or more"]),
    ("resilience.nodes_per_pipeline=3", ["needs 2 pipelines", "nodes_per_pipeline = 3 makes 1 of them"]),
    ("cluster.objective=oobleck", ["cluster.objective = 'oobleck'", 'resilience.policy = "templates"']),
    ("cluster.objective=fast", ["cluster.objective = 'fast'", '"steptime" or "oobleck"']),
    ("resilience.policy=recycle", ["resilience.policy = 'recycle'", "templates", "reroute"]),
    (
        "resilience.mean_time_between_failures_s=0",
        ["resilience.mean_time_between_failures_s = 0.0", "is not above 0"],
    ),
    ("resilience.preemption=azure", ["resilience.preemption = 'azure'", "none, aws, google or module:function"]),
    ("resilience.preemption='a:b c'", ["resilience.preemption = 'a:b c'"]),
    ("cluster.storage_gb_per_s=0", ["cluster.storage_gb_per_s = 0.0", "is not above 0"]),
    ("train.microbatch=8", ["gives 1 microbatches", "global_batch to 16 or more"]),
    ("run.keep_checkpoints=0", ["run.keep_checkpoints = 0"]),
    ("run.checkpoint_every=-1", ["run.checkpoint_every = -1"]),
    ("run.checkpoint_every_s=-1", ["run.checkpoint_every_s = -1"]),
    ("run.name=a/b", ["run.name = 'a/b'", "folder's name"]),
    ("run.name='..'", ["run.name = '..'"]),
    ("run.folder=''", ["run.folder = ''"]),
    ("model.type='a:b c'", ["model.type = 'a:b c'", "module:function"]),
    ("model.loss='a:b'", ["model.loss", "model.type = 'gpt2'"]),
    ("eval.share=1", ["eval.share = 1.0", "below 1"]),
    ("train=3", ["--set 'train=3'", "section.key=value"]),
    ("train.steps", ["--set 'train.steps'", "section.key=value"]),
    ("train.steps.x=3", ["train.steps = 10 is not a table"]),
]


def test_there_is_one_way_to_say_what_is_evaluated_on() -> None:
    with pytest.raises(UserError, match=r"eval.share = 0.1 does not go with eval.source = 'x'. Give one of them"):
        parse("eval.share=0.1", "eval.source=x")


def test_morph_keeps_the_checkpoint_that_it_may_be_reading() -> None:
    needed = ("resilience.policy=morph", "run.checkpoint_every=5")
    assert parse(*needed).run.keep_checkpoints == 2
    assert parse(needed[0]).run.writes_checkpoints, "as the run chooses"
    with pytest.raises(UserError, match=r'run\.checkpoint_every = 0 writes none for resilience\.policy = "morph"'):
        parse(needed[0], "run.checkpoint_every=0")
    with pytest.raises(UserError, match=r"run\.keep_checkpoints = 1 is too few for"):
        parse(*needed, "run.keep_checkpoints=1")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("cluster.ray.address=ray://a:1", r"cluster.ray.address = 'ray://a:1' is not HOST:PORT.*6379"),
        ("cluster.ray.spares=-1", r"cluster.ray.spares = -1"),
        ("cluster.ray.gpus=-0.5", r"cluster.ray.gpus = -0.5 is below 0"),
        ("run.journal=etcds://a:1", r"run.journal = 'etcds://a:1' is under TLS, and cluster.tls is missing"),
    ],
)
def test_what_does_not_go_with_ray_is_refused(override: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse("cluster.launcher=ray", override)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("cluster.transport=nccl",),
            r"cluster.transport = 'nccl' goes with cluster.device = \"cuda\", not with \"cpu\"",
        ),
        (("cluster.transport=gloo", "cluster.device=cuda"), r"goes with cluster.device = \"cpu\", not with \"cuda\""),
        (
            ("cluster.transport=gloo", "cluster.launcher=agents", "cluster.tls=/tls"),
            r"without encryption, and cluster.tls",
        ),
        (("cluster.transport=rdma",), r"cluster.transport"),
    ],
)
def test_what_carries_tensors_has_to_fit_the_devices_and_tls(overrides: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse(*overrides)


def test_groups_carry_tensors_where_these_need_no_encryption() -> None:
    plain = ("cluster.launcher=agents", "cluster.tls=/tls", "cluster.data_encryption=false")
    assert parse("cluster.transport=gloo", *plain).cluster.transport == "gloo"
    assert parse("cluster.transport=nccl", "cluster.device=cuda").cluster.transport == "nccl"


@pytest.mark.parametrize(("override", "parts"), REFUSED, ids=[override for override, _ in REFUSED])
def test_what_is_no_job_is_refused_by_field_and_remedy(override: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse(override)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("devices", "stages", "says"),
    [
        (
            1,
            "auto",
            r"devices_per_node is 1.*set cluster\.devices_per_node = 2 or more, and cluster",
        ),
        (2, "1", r"devices_per_stage is 1.*set cluster\.devices_per_stage = 2 or more"),
        (3, "2", r"cluster\.devices_per_stage = 2 does not divide cluster\.devices_per_node = 3.*divisor of 3"),
    ],
)
def test_a_state_is_spread_over_several_devices_or_not_at_all(devices: int, stages: str, says: str) -> None:
    given = (f"cluster.devices_per_node={devices}", f"cluster.devices_per_stage={stages}")
    with pytest.raises(UserError, match=says):
        parse("cluster.optimizer_state=spread", *given)
    parse("cluster.optimizer_state=spread", "cluster.devices_per_node=2", "cluster.devices_per_stage=auto")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("model.lora={r=2}", r"does not go with adapters.*leave \[model\.lora\] out"),
        ("train.compile=true", r"does not go with train\.compile = true.*compile = false"),
    ],
)
def test_what_does_not_go_with_virtual_shards_is_refused(other: str, says: str) -> None:
    with pytest.raises(UserError, match=rf"model\.virtual_shards = 2 .*{says}"):
        parse("model.virtual_shards=2", other)


TENSOR = (
    "cluster.stage_parallelism=tensor", "cluster.devices_per_node=4", "cluster.devices_per_stage=4",
    "model.virtual_shards=4",
)  # fmt: skip


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("cluster.devices_per_stage=1", r"cluster\.devices_per_stage = 1 does not go with .* Set it to 2"),
        ("cluster.devices_per_stage=auto", r"cluster\.devices_per_stage = 'auto' does not go with .* Set it to 2"),
        ("model.virtual_shards=2", r"model\.virtual_shards = 2 is not shared by the 4 devices .* Set it to 4"),
        (
            "model.virtual_shards=0",
            r"model\.virtual_shards = 0 is not shared by .* Set it to 4.*numerics = \"fast\"",
        ),
    ],
)
def test_what_does_not_go_with_tensor_stages_is_refused(other: str, says: str) -> None:
    assert parse(*TENSOR).cluster.stage_parallelism is StageParallelism.TENSOR
    parse(*TENSOR, "resilience.policy=redundancy", "resilience.audit=0.1")
    with pytest.raises(UserError, match=says):
        parse(*TENSOR, other)


@pytest.mark.parametrize("other", ["model.type=layers:transformer", "model.lora={r=2}", "train.compile=true"])
def test_layers_that_are_whole_are_not_shared(other: str) -> None:
    with pytest.raises(UserError, match=r"stage_parallelism = 'tensor' does not go with .* Set it to \"sharded"):
        parse(*TENSOR[:3], "train.numerics=fast", other)


def test_in_fast_numerics_each_device_of_a_tensor_stage_has_a_shard() -> None:
    fast = (*TENSOR[:3], "train.numerics=fast")
    assert parse(*fast).model.virtual_shards == 4
    assert parse(*fast, "model.virtual_shards=8").model.virtual_shards == 8
    assert parse(*fast, "cluster.stage_parallelism=sharded").model.virtual_shards == 0
    with pytest.raises(UserError, match=r"devices_per_stage = 3 does not go with"):
        parse(*fast, "cluster.devices_per_node=6", "cluster.devices_per_stage=3")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["model.type is missing", "a text"]),
        ('[model]\ntype = "gpt2"', ["train.steps is missing", "Add steps to [train]"]),
        ("[model", ["job.toml is not valid TOML"]),
        ("x = 1\nx = 2", ["job.toml is not valid TOML"]),
        ("model = 3", ["model = 3 is not a section", "[model]"]),
        ("[[model]]\ntype = 'a'", ["model", "is not a section"]),
        ("a = " + "[" * 5000, ["job.toml is not valid TOML"]),
        ("a = 1" + "0" * 5000, ["job.toml"]),
    ],
)
def test_files_that_are_not_there_are_refused(text: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_job(text, origin="job.toml")
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_do_not_go_with_a_function() -> None:
    with pytest.raises(UserError, match=r"model.weights = 'w'"):
        parse("model.type='a:b'", "model.weights=w")
    assert parse("model.type='a:b'", "model.loss='a:c'").model.loss == "a:c"


def test_load_job_names_the_run_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINIMAL)
    assert load_job(path).run.name == "mine"
    assert load_job(path, ["run.name=other"]).run.name == "other"


def test_load_job_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_job(tmp_path / "none.toml")
    with pytest.raises(UserError, match="cannot be read"):
        load_job(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        load_job(tmp_path / "binary.toml")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    load_job(path)


def test_a_job_in_json_is_the_same_and_has_one_fingerprint() -> None:
    job = parse("model.config.n_layer=4")
    assert job_from_json(job_json(job)) == job
    assert validated(job) == job
    assert json.loads(job_json(job))["train"]["steps"] == 10
    assert job_fingerprint(job) == job_fingerprint(parse("model.config.n_layer=4", "cluster.nodes=5"))
    grows = parse("model.config.n_layer=4", "cluster.nodes={least=3, most=9}")
    assert job_fingerprint(job) == job_fingerprint(grows)
    assert job_from_json(job_json(grows)) == grows
    assert (grows.cluster.least_nodes, grows.cluster.most_nodes) == (3, 9)
    assert job_fingerprint(job) != job_fingerprint(parse("model.config.n_layer=4", "train.seed=2"))
    rounded = parse("model.config.n_layer=4", "train.boundary_dtype=bfloat16")
    assert job_fingerprint(job) != job_fingerprint(rounded)
    assert changed_numbers(job, rounded) == ("train.boundary_dtype",)
    in_shards = parse("model.config.n_layer=4", "model.virtual_shards=2")
    assert job_fingerprint(job) != job_fingerprint(in_shards)
    assert changed_numbers(job, in_shards) == ("model.virtual_shards",)
    assert changed_numbers(job, parse("train.seed=2", "run.name=x")) == ("model.config", "train.seed")
    with pytest.raises(UserError, match="damaged"):
        job_from_json(b"{")


def test_an_emulated_job_needs_a_profile_and_no_model() -> None:
    without_model = MINIMAL.partition("[train]")[2]
    emulated = ["cluster.device=emulated", "cluster.profile=costs.json"]
    job = parse_job(f"[train]{without_model}", overrides=emulated, origin="job.toml")
    assert (job.cluster.device, job.cluster.profile) == (Device.EMULATED, "costs.json")
    assert job_from_json(job_json(job)) == job
    assert parse(*emulated).model.type == "gpt2", "a job file for another device may be used as it is"
    with pytest.raises(UserError, match=r"model\.type is missing"):
        parse_job(f"[train]{without_model}", origin="job.toml")
    with pytest.raises(UserError, match=r"cluster\.profile is missing. Set cluster\.profile"):
        parse("cluster.device=emulated")
    assert parse("cluster.profile=costs.json").cluster.device is Device.CPU, "what to begin with, there"


def test_a_job_made_in_python_is_checked_too() -> None:
    job = parse()
    wrong: Any = "ten"
    broken = msgspec.structs.replace(job, train=msgspec.structs.replace(job.train, steps=wrong))
    with pytest.raises(UserError, match=r"train.steps = 'ten'"):
        validated(broken)


SECTIONS = {
    "model": ["type", "config", "weights", "loss"],
    "data": ["source", "tokenizer", "mask_probability"],
    "train": ["steps", "global_batch", "microbatch", "betas", "eps", "lr_schedule", "seed", "numerics"],
    "cluster": ["nodes", "device", "memory_gb", "port"],
    "resilience": ["fault_tolerance", "policy", "min_nodes_per_pipeline"],
    "run": ["folder", "name", "checkpoint_every"],
}
SCALARS = st.one_of(
    st.integers(),
    st.integers(-2, 70_000),
    st.floats(),
    st.booleans(),
    st.text(),
    st.sampled_from(["gpt2", "a:b", "cpu", "exact", "cosine", "..", "\0", "2020-01-01", "[" * 50]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value)
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {toml(part)}" for key, part in value.items()) + "}"
        case _:
            return repr(value)


@st.composite
def jobs(draw: st.DrawFn) -> str:
    lines = []
    for section, keys in SECTIONS.items():
        if draw(st.integers(0, 9)) == 0:
            continue
        table = draw(st.dictionaries(st.sampled_from(keys) | st.text(max_size=3), VALUES, max_size=2))
        required = {"model": {"type": "gpt2"}, "cluster": {"nodes": 4}}.get(section, {})
        if section == "train":
            required = {"steps": 9, "global_batch": 8, "microbatch": 2, "sequence_length": 16}
        lines.append(f"[{section}]")
        lines.extend(f"{json.dumps(key)} = {toml(value)}" for key, value in {**required, **table}.items())
    return "\n".join(lines)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=jobs() | st.text(),
    overrides=st.lists(
        st.text() | st.builds(lambda key, value: f"train.{key}={value}", st.sampled_from(SECTIONS["train"]), st.text()),
        max_size=2,
    ),
)
def test_anything_is_a_job_or_one_line(text: str, overrides: list[str]) -> None:
    try:
        job = parse_job(text, overrides=overrides, origin="job.toml")
    except UserError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert job_from_json(job_json(job)) == job
        assert validated(job) == job
    assert len(refusal.splitlines()) <= 1


def test_an_owner_and_its_shadow_are_two_replicas() -> None:
    """So the policy redundancy keeps f + 1 with half as many pipelines, if they have more than one node."""
    lines = """
model = { type = "gpt2" }
train = { steps = 1, global_batch = 8, microbatch = 1, sequence_length = 4 }
cluster = { nodes = 4 }
[resilience]
min_nodes_per_pipeline = 4
"""
    with pytest.raises(UserError, match="needs 2 pipelines of 4 nodes each"):
        parse_job(lines, origin="test")
    job = parse_job(lines + 'policy = "redundancy"\n', origin="test")
    assert job.resilience.redundancy == "eager-lazy"
    with pytest.raises(UserError, match="needs 4 pipelines of 1 node each"):
        parse_job(
            lines + 'policy = "redundancy"\nfault_tolerance = 3\n',
            overrides=["resilience.min_nodes_per_pipeline=1", "cluster.nodes=3"],
            origin="test",
        )


def test_a_dataset_needs_no_sequences_and_no_tokenizer() -> None:
    job = parse("data.source=images:train", "data.config={size=3}", "train.sequence_length=0", "eval.source=a.b:test")
    assert (job.train.sequence_length, job.data.config) == (0, {"size": 3})
    with pytest.raises(UserError, match=r"data.tokenizer = 'a.json' is for tokens, not for a dataset"):
        parse("data.source=images:train", "data.tokenizer=a.json")
    with pytest.raises(UserError, match=r"train.sequence_length is missing"):
        parse("data.source=./images:train", "train.sequence_length=0")  # a file with a colon in its name


def test_audits_are_for_exact_numerics() -> None:
    assert parse("resilience.audit=0.5").resilience.audit == 0.5
    with pytest.raises(UserError) as caught:
        parse("resilience.audit=0.01", "train.numerics=fast")
    assert 'resilience.audit = 0.01 is for exact numerics, not for train.numerics = "fast"' in str(caught.value)
    assert 'Set train.numerics = "exact", or audit = 0.' in str(caught.value)
