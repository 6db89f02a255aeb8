"""A Python function as the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from small_models import TRAIN, filled_layers, random_ids, run_layers, whole_state
from torch import nn
from torch.nn import functional

from planaria.job.errors import UserCodeError, UserError
from planaria.job.sections.model import ModelSection
from planaria.job.sections.train import ParameterRule, TrainSection
from planaria.model.function import ModelRaised
from planaria.model.load import load_model
from planaria.model.model import ModelError, Tensors

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = __name__


@pytest.fixture(autouse=True)
def _examples_on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("layers", None)


def section(function: str = "layers:transformer", **config: object) -> ModelSection:
    return ModelSection(type=function if ":" in function else f"{HERE}:{function}", config=config)


SMALL = section(width=32, depth=2, num_heads=2)


def test_the_example_trains_as_a_list_of_layers() -> None:
    model = load_model(SMALL, TRAIN, vocab_size=259)
    assert model.layer_names == ("0.Embedding", "1.Block", "2.Block", "3.Head")
    assert not model.masked_lm
    assert [group.layers for group in model.groups] == [(0,), (1,), (2,), (3,), (0, 3)]
    (tied,) = model.groups[-1].parameters
    assert tied.name == "layers.0.token.weight"
    assert tied.uses == ((0, "token.weight"), (3, "logits.weight"))
    layers = filled_layers(model, whole_state(model))
    between = run_layers(layers[:2], random_ids())
    assert len(between) == 2
    loss = model.loss(run_layers(layers, random_ids()), {"labels": random_ids()})
    loss.backward()
    assert loss.item() == pytest.approx(5.6, abs=0.3)
    assert all(parameter.grad is not None for layer in layers for parameter in layer.parameters())


def test_layers_are_copies_and_states_are_copies() -> None:
    model = load_model(SMALL, TRAIN, vocab_size=259)
    state = whole_state(model, TRAIN.seed)
    with torch.no_grad():
        for parameter in model.build_layer(1).parameters():
            parameter.zero_()
        for value in state.values():
            value.zero_()
    assert whole_state(model, TRAIN.seed)["layers.1.output.weight"].any()
    assert model.build_layer(1) is not model.build_layer(1)


def test_initial_state_is_a_function_of_the_seed() -> None:
    torch.manual_seed(1)
    first = load_model(SMALL, TRAIN, vocab_size=259)
    torch.manual_seed(2)
    second = load_model(SMALL, TrainSection(steps=1, global_batch=1, microbatch=1, sequence_length=8), vocab_size=259)
    mine, theirs = whole_state(first, 5), whole_state(second, 5)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    others = whole_state(first, 6)
    assert any(not torch.equal(mine[name], others[name]) for name in mine)


def half(outputs: Tensors, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return outputs[0].mean() * 0 + 0.5


def logits_as_loss(outputs: Tensors, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return outputs[0]


def test_a_job_may_bring_its_loss() -> None:
    model = load_model(ModelSection(type=SMALL.type, config=SMALL.config, loss=f"{HERE}:half"), TRAIN, vocab_size=259)
    assert model.loss((torch.ones(2),), {}).item() == 0.5


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return hidden * mask


class Listing(nn.Module):
    def forward(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        return [hidden]


def one_layer() -> list[nn.Module]:
    return [nn.Embedding(259, 259)]


def not_a_list() -> nn.Module:
    return nn.Linear(1, 1)


def not_a_module() -> str:
    return "model"


class Skipping(nn.Module):
    """Two inputs; the first embedding and the mask of the second skip the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(259, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("shift", torch.arange(8.0))
        self.head = nn.Linear(8, 259)
        self.head.weight = self.word.weight

    def between(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return hidden

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        embedded = self.word(input_ids) + self.shift
        hidden = embedded
        for block in self.blocks:
            hidden = functional.dropout(torch.tanh(block(hidden)), 0.1, self.training)
        hidden = self.between(hidden, labels)
        hidden = (hidden * self.scale).masked_fill((labels == 3)[..., None], 0.0) + embedded
        return self.head(hidden)


class Twice(Skipping):
    def between(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.blocks[0](hidden)


class Decides(Skipping):
    def between(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return hidden if hidden.sum() > 0 else -hidden


class Fails(Skipping):
    def between(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        raise KeyError("no mask")


class Chance(Skipping):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(labels.float())
        return super().forward(input_ids, labels) * noise[..., None] + self.scale.sum() * noise[..., None]


def skipping() -> nn.Module:
    return Skipping()


def twice() -> nn.Module:
    return Twice()


def decides() -> nn.Module:
    return Decides()


def fails() -> nn.Module:
    return Fails()


def chance() -> nn.Module:
    return Chance()


def not_modules() -> list[object]:
    return [nn.Embedding(259, 4), "head"]


def needs_a_mask() -> list[nn.Module]:
    return [nn.Embedding(259, 4), Picky()]


def returns_a_list() -> list[nn.Module]:
    return [nn.Embedding(259, 259), Listing()]


def few_rows() -> list[nn.Module]:
    return [nn.Embedding(10, 4), nn.Linear(4, 259)]


def all_steps() -> list[nn.Module]:
    return [nn.Embedding(259, 4), nn.BatchNorm1d(4, momentum=None)]


def instances() -> list[nn.Module]:
    return [nn.Embedding(259, 4), nn.InstanceNorm1d(4, track_running_stats=True)]


def one_norm() -> list[nn.Module]:
    norm = nn.BatchNorm1d(16)
    return [nn.Embedding(259, 4), norm, norm, nn.Linear(4, 259)]


def frozen() -> list[nn.Module]:
    return [nn.Embedding(259, 4).requires_grad_(False), nn.Linear(4, 259).requires_grad_(False)]


def half_frozen() -> list[nn.Module]:
    return [nn.Embedding(259, 4).requires_grad_(False), nn.Linear(4, 259)]


def double() -> list[nn.Module]:
    return [nn.Embedding(259, 4), nn.Linear(4, 259).double()]


def raises() -> list[nn.Module]:
    raise RuntimeError("no luck")


class Stumbling(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise KeyError("no mask")


def stumbles() -> list[nn.Module]:
    return [nn.Embedding(259, 4), Stumbling(4, 259)]


def test_what_requires_no_gradient_or_is_ruled_out_is_a_constant() -> None:
    rule = ParameterRule(match="*.bias", trainable=False)
    model = load_model(section("half_frozen"), msgspec.structs.replace(TRAIN, parameters=(rule,)), vocab_size=259)
    assert [spec.name for spec in model.frozen] == ["layers.0.weight", "layers.1.bias"]
    assert [[spec.name for spec in group.parameters] for group in model.groups] == [["layers.1.weight"]]
    first, again = model.build_layer(1), model.build_layer(1)
    assert [parameter.requires_grad for parameter in first.parameters()] == [True, False]
    assert first.bias is again.bias
    assert torch.equal(again.bias, model.build_layer(1).get_parameter("bias"))


REFUSED = [
    (section("no_such_module_here:make"), ("cannot import 'no_such_module_here'", "PYTHONPATH")),
    (section("layers:transfomer"), ("no function 'transfomer'",)),
    (section("layers:"), ("module:function",)),
    (section("layers:transformer", widht=3), ("TypeError", "widht", "[model.config]")),
    (section("one_layer"), ("1 layer", "Return two or more")),
    (section("not_a_list"), ("a Linear cannot be cut", "no list of blocks", "model.split_at")),
    (section("not_a_module"), ("returns a str", "not a torch.nn.Module or a list of them")),
    (section("twice"), ("a Twice cannot be cut", "called twice", "list of layers")),
    (section("decides"), ("a Decides cannot be cut", "values of tensors")),
    (section("fails"), ("a Fails cannot be cut", "its forward fails with KeyError: 'no mask'")),
    (section("chance"), ("gives other outputs than whole",)),
    (section("not_modules"), ("layer 1 is a str",)),
    (section("needs_a_mask"), ("layer 1.Picky", "1 tensor(s) of shape (2, 16, 4)", "mask")),
    (section("returns_a_list"), ("layer 1.Listing returns a list",)),
    (section("few_rows"), ("its largest embedding has 10 rows, and the tokenizer 259 tokens",)),
    (section("frozen"), ("none of its 3 parameters is trainable", "'layers.1.weight'")),
    (section("all_steps"), ("layer 1: of BatchNorm1d momentum is None", "0.1")),
    (section("instances"), ("layer 1: of InstanceNorm1d", "track_running_stats=False")),
    (section("one_norm"), ("layers 1 and 2 share a batch norm", "its own")),
    (section("double"), ("float64", "float32")),
    (section("raises"), ("RuntimeError: no luck",)),
    (ModelSection(type=SMALL.type, weights="/tmp"), ("model.weights = '/tmp'",)),
    (ModelSection(type=SMALL.type, loss=f"{HERE}:logits_as_loss"), ("loss", "scalar")),
]


def test_a_module_is_cut_at_its_blocks() -> None:
    """Outputs and gradients are those of the whole; parameters have its names; a tied one is one."""
    model = load_model(section("skipping"), TRAIN, vocab_size=259)
    assert model.layer_names == ("word", "blocks.0", "blocks.1", "blocks.2", "head")
    assert model.inputs == ("input_ids", "labels")
    names = [spec.name for group in model.groups for spec in group.parameters]
    assert sorted(names) == sorted(name for name, _ in Skipping().named_parameters())
    state = whole_state(model)
    whole = Skipping()
    whole.load_state_dict({**state, "shift": whole.shift, "head.weight": state["word.weight"]})
    layers, ids = filled_layers(model, state), random_ids()
    for module in (whole, *layers):
        module.eval()
    expected = whole(ids, ids.flip(0))
    (found,) = run_layers(layers, ids, ids.flip(0))
    assert torch.equal(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for spec in (spec for group in model.groups for spec in group.parameters):
        gradients = [layers[at].get_parameter(local).grad for at, local in spec.uses]
        gradient = sum(one for one in gradients if one is not None)
        torch.testing.assert_close(gradient, whole.get_parameter(spec.name).grad)


def test_blocks_may_be_named() -> None:
    named = ModelSection(type=f"{HERE}:skipping", split_at=("blocks.1",))
    assert load_model(named, TRAIN, vocab_size=259).layer_names == ("word", "blocks.1", "head")
    with pytest.raises(ModelError, match=r"no module's path fits 'layers\.\*'"):
        load_model(ModelSection(type=f"{HERE}:skipping", split_at=("layers.*",)), TRAIN, vocab_size=259)
    with pytest.raises(ModelError, match=r"model.split_at = \['0'\]: a list of layers is cut already"):
        load_model(ModelSection(type=SMALL.type, config=SMALL.config, split_at=("0",)), TRAIN, vocab_size=259)


@pytest.mark.parametrize(
    ("given", "where", "what"), [("raises", "raises", "RuntimeError"), ("stumbles", "forward", "KeyError")]
)
def test_what_the_users_code_raises_is_shown_where_it_is(given: str, where: str, what: str) -> None:
    """From the user's first line on, nothing of ours or of torch's before it."""
    with pytest.raises(ModelRaised) as caught:
        load_model(section(given), TRAIN, vocab_size=259)
    first, second, *_, last = caught.value.trace.splitlines()
    assert first == "Traceback (most recent call last):"
    assert __file__ in second
    assert second.endswith(f"in {where}")
    assert last.startswith(what)


def test_a_module_that_raises_is_shown_where_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    tmp_path.joinpath("broken_model.py").write_text("import torch\n\nimport no_such_module_either\n")
    with pytest.raises(UserCodeError, match="No module named 'no_such_module_either'") as caught:
        load_model(ModelSection(type="broken_model:make"), TRAIN, vocab_size=259)
    assert "PYTHONPATH" not in str(caught.value)
    assert caught.value.trace.splitlines()[1].endswith('broken_model.py", line 3, in <module>')


@pytest.mark.parametrize(("given", "parts"), REFUSED)
def test_refusals_name_the_value_and_the_remedy(given: ModelSection, parts: tuple[str, ...]) -> None:
    with pytest.raises((ModelError, UserError)) as caught:
        load_model(given, TRAIN, vocab_size=259)
    for part in (given.type, *parts) if given.weights is None else parts:
        assert part in str(caught.value)
