"""Marks: rare branches of the protocol, by name, each with the reason for which it exists; which of them a run reached.

The shipped code knows nothing of them. A mark names a function and a statement in it. `watch` compiles these functions
once more, in memory, with a note before the statement, and puts the new code in the place of the old.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from types import CodeType, FunctionType

ROOT = "planaria."


@dataclass(frozen=True, slots=True)
class Mark:
    """A rare branch.

    Attributes:
        name: of it.
        module: below `planaria`.
        function: in it, by its qualified name.
        line: the statement is this line of the function, or the only one that begins so; of a condition, what it leads
            to; "": the function's first.
        why: it exists.
    """

    name: str
    module: str
    function: str
    line: str
    why: str


_LOSSES, _SALVAGE = "protocol.handlers.losses", "protocol.handlers.salvage"
_RESTORE, _BOUNDARY = "protocol.handlers.restore", "protocol.handlers.boundary"
_RESTART, _DETECTOR = "protocol.handlers.restart", "protocol.membership.failure_detector"
_FINISH, _TAKEOVER = "planner.finish_step.salvage", "planner.finish_step.shadow_takeover"
_TABLE, _SAVED = "protocol.transitions", "protocol.handlers.saved"

MARKS = (
    Mark(
        "salvage without a whole pipeline",
        _FINISH,
        "Undone.usual",
        "holders =",
        "the losses broke every pipeline, and what is missing goes along whoever holds each layer",
    ),
    Mark(
        "salvage over whole pipelines",
        _FINISH,
        "Undone.usual",
        "return along_pipelines",
        "a pipeline lost nobody, and takes over the microbatches of the broken ones",
    ),
    Mark(
        "committed though a voter is lost",
        _LOSSES,
        "_go_on",
        "return step.conclude",
        "whoever was lost had voted or was not needed: its sums are with others",
    ),
    Mark(
        "lost without work",
        _LOSSES,
        "lost_in_step",
        "return commands",
        "the node is not in the plan: it came just now, or was left idle",
    ),
    Mark(
        "lost while a checkpoint holds everybody up",
        _LOSSES,
        "lost_while_saving",
        "",
        "others have to write what the node was to write",
    ),
    Mark("a device is lost alone", _LOSSES, "device_lost", "commands =", "its node goes on with the others"),
    Mark(
        "a device comes back",
        "protocol.handlers.joins",
        "join",
        "run.plan_selector.lack",
        "the user had it started again, and no plan has it any more",
    ),
    Mark(
        "a stage without devices cannot be carried",
        "policy.registry",
        "StageDevicesPolicy.reconfigure",
        "idle =",
        "its neighbour on the node shadows others, or has no room: the node is done without",
    ),
    Mark(
        "a worker of another version of the protocol",
        "protocol.membership.admission",
        "Admission.refusal",
        "if (other :=",
        "what it would say might be read as something else: it is refused in a line, and the run goes on",
    ),
    Mark("lost while gathering", _LOSSES, "lost_while_gathering", "lost =", "the run starts on fewer nodes"),
    Mark(
        "nothing was counted",
        _SALVAGE,
        "_decide_when_reported",
        "if next(computing",
        "nothing of the step is left that is worth keeping, so it begins on a new placement",
    ),
    Mark(
        "step begun anew for time",
        _SALVAGE,
        "_finish_step",
        "rest_s, anew_s =",
        "few are left to finish the step, and on a new placement it is done sooner from the start",
    ),
    Mark(
        "step that cannot be finished",
        _SALVAGE,
        "_finish_step",
        "return begin(run)",
        "no policy finds a way to finish it: all halt, and it begins anew",
    ),
    Mark(
        "shadows go on within the step",
        _TAKEOVER,
        "resume",
        "new = ",
        "Bamboo's takeover: the shadow has what the lost worker had, so nothing runs again",
    ),
    Mark(
        "a shadow is lost too",
        _TAKEOVER,
        "_taken_over",
        "return None",
        "a worker and its shadow are lost, or the shadow was promoted before and has none of its own",
    ),
    Mark(
        "a pipeline is filled up",
        _TAKEOVER,
        "filled",
        "owner_of =",
        "a shadow was promoted before: a second loss leaves a pipeline with a gap that a member can close",
    ),
    Mark(
        "a pipeline of one stage is taken over",
        _TAKEOVER,
        "_pipelines",
        "lost = pipeline.stages[0]",
        "such a pipeline has no shadow but the one before it in the ring",
    ),
    Mark("back to a checkpoint", _RESTORE, "go_back", "", "a layer has no replica left, or the policy goes back"),
    Mark(
        "no replica and no checkpoint",
        _RESTORE,
        "_nothing_saved",
        "",
        "the state is lost, and the run must say so instead of beginning with anything else",
    ),
    Mark(
        "a state to go back to, and no plan",
        _RESTORE,
        "_no_plan",
        "",
        "too few nodes are left to load the checkpoint",
    ),
    Mark(
        "a checkpoint given up by going back",
        _RESTORE,
        "_rewind",
        'run.checkpoints.give_up("the job goes back")',
        "what is being written is of a step that is to be done again",
    ),
    Mark("waiting for nodes", _RESTORE, "wait", "", "too few nodes are left, and the job file says to wait"),
    Mark("on from waiting", _BOUNDARY, "try_again", "", "a node came while the job waited"),
    Mark(
        "what was to be warmed up is given up",
        _BOUNDARY,
        "_change_over",
        "return reconfigure(run, holders)  #",
        "a loss or a join came while state moved beside a step",
    ),
    Mark(
        "nobody holds what is to be saved",
        _BOUNDARY,
        "ask_to_save",
        'return could_not_save(run, f"no replica',
        "the last holder of a group was lost while all waited for the checkpoint",
    ),
    Mark(
        "a run keeps what it cannot save",
        _BOUNDARY,
        "could_not_save",
        "return [Discard(folder)",
        "the disk is full at the very end: the state stays in memory until there is room",
    ),
    Mark("saved at last", _BOUNDARY, "save_again", "", "the disk may have room by now"),
    Mark(
        "too few until somebody came while saving",
        _BOUNDARY,
        "after_saving",
        "run.plan_validity.newcomers.clear()",
        "a node joined while a job that had too few was being saved",
    ),
    Mark(
        "a lost commit is told again",
        _RESTART,
        "_untold",
        "assert position.commit",
        "the coordinator died after it wrote a commit down, and before it told everybody",
    ),
    Mark(
        "a plan that only workers know",
        _RESTART,
        "_go_on_when_returned",
        "run.returning.ask(ask)",
        "the journal lost its end, and a worker is asked for the plan",
    ),
    Mark(
        "older than the job",
        _RESTART,
        "go_on_from",
        "commands += lose(run",
        "the journal lost that a node was given up, and the job went on without it",
    ),
    Mark(
        "committed on the way back",
        _RESTART,
        "_go_on_within",
        "return step.conclude(run)",
        "all had voted when the coordinator died",
    ),
    Mark(
        "halted on the way back",
        _RESTART,
        "_go_on_within",
        "run.attempt.is_void = True",
        "the coordinator died between the halt for a damaged message and the plan that follows",
    ),
    Mark(
        "a loss on the way back",
        _RESTART,
        "lost_while_returning",
        "return lose",
        "a node died while there was no coordinator, or before it came back",
    ),
    Mark(
        "ended before it died",
        _RESTART,
        "restarted",
        "(ended,) = past.end.records",
        "the coordinator died after it wrote the end down, and before it told everybody",
    ),
    Mark(
        "back too late",
        _TABLE,
        "returned_late",
        'return _gone(run, NodeGone(node, "it came back too late"))',
        "the journal lost the plan that a worker has, and the job went on without asking it",
    ),
    Mark(
        "memory ran out for good",
        _TABLE,
        "out_of_memory",
        'text = f"node {node} does no more',
        "no plan fits any more, and whoever ran out still holds state that can be saved",
    ),
    Mark(
        "code that fails on a node without work",
        _TABLE,
        "failed",
        "return _gone(run, NodeGone(node, text))",
        "the others do not need it",
    ),
    Mark(
        "damaged state comes again",
        _TABLE,
        "damaged",
        "source = again.transfer.source",
        "a piece of state arrived damaged, and another holder sends it",
    ),
    Mark(
        "damaged again and again",
        _TABLE,
        "damaged",
        "return _gone(run",
        "a way on which every message is damaged is no way",
    ),
    Mark(
        "a complaint kept until all are back",
        _TABLE,
        "heard_later",
        "",
        "a message came damaged while there was no coordinator to hear of it",
    ),
    Mark("a manifest that could not be written", _SAVED, "manifest_failed", "", "the disk filled up in between"),
    Mark(
        "a node that brings too little",
        "protocol.handlers.joins",
        "give_back",
        "if is_asked and (why",
        "the others are nearly as fast without it, and it is given back",
    ),
    Mark(
        "joined too late",
        "protocol.handlers.joins",
        "joined_too_late",
        "",
        "a node that was started comes after the end of the run, and must end too",
    ),
    Mark(
        "more than one way to finish",
        "policy.finishing",
        "quickest",
        "best, most = Finished(plan=plan",
        "survivors of broken pipelines take part, as that is clearly sooner",
    ),
    Mark(
        "alone with all workers silent",
        _DETECTOR,
        "Isolation.holds",
        "self._quiet_s = quiet_s",
        "the coordinator hears of nobody, and is the one that is cut off",
    ),
    Mark(
        "one of two that cannot reach each other",
        _DETECTOR,
        "Judge.cut_off",
        "is_other =",
        "both live, and one has to go",
    ),
    Mark(
        "a device that hangs alone",
        "protocol.reception",
        "Reception._judge_all",
        "self.handle(DeviceGone(worker, verdict.cause))",
        "others of its node answer, and go on without it",
    ),
    Mark(
        "all wait for all",
        "protocol.membership.liveness",
        "Liveness.blocked",
        'return min(passed), "hung: it waits',
        "messages were lost on the ways between live workers in a circle",
    ),
)


def watch() -> set[str]:
    """Watches all marks from now on; returns the set to which the names of those that are reached are added."""
    reached: set[str] = set()
    for module, function in sorted({(mark.module, mark.function) for mark in MARKS}):
        _watch(ROOT + module, function, [m for m in MARKS if (m.module, m.function) == (module, function)], reached)
    return reached


def _watch(module: str, function: str, marks: list[Mark], reached: set[str]) -> None:
    loaded = import_module(module)
    file = inspect.getsourcefile(loaded)
    assert file is not None
    source = inspect.getsource(loaded)
    tree, lines = ast.parse(source), source.splitlines()
    found = _function(tree, function.split("."))
    for mark in marks:
        _note(found, mark, lines)
    vars(loaded)["_reached"] = reached.add
    place = attrgetter(function)(loaded)
    assert isinstance(place, FunctionType), f"{function} is no plain function"
    place.__code__ = _code_of(compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True), function)


def _function(tree: ast.Module, names: list[str]) -> ast.FunctionDef:
    body: list[ast.stmt] = tree.body
    for name in names[:-1]:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == name).body
    return next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == names[-1])


def _note(function: ast.FunctionDef, mark: Mark, lines: list[str]) -> None:
    """Puts a note before the mark's statement. Raises LookupError if there is none, or more than one."""
    places = [
        (body, at)
        for body in _bodies(function)
        for at, statement in enumerate(body)
        if mark.line and lines[statement.lineno - 1].strip().startswith(mark.line)
    ]
    if len(places) > 1:
        places = [(body, at) for body, at in places if lines[body[at].lineno - 1].strip() == mark.line]
    if not mark.line:
        places = [(function.body, int(ast.get_docstring(function) is not None))]
    if len(places) != 1:
        raise LookupError(f"mark {mark.name!r}: {len(places)} statements of {mark.function} begin {mark.line!r}")
    ((body, at),) = places
    if mark.line.startswith("if "):
        branch = body[at]
        assert isinstance(branch, ast.If)
        body, at = branch.body, 0
    (note,) = ast.parse(f"_reached({mark.name!r})").body
    body.insert(at, note)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yields the lists of statements within."""
    for child in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(child, name, None)
            if isinstance(body, list):
                yield body


def _code_of(code: CodeType, function: str) -> CodeType:
    """Returns the code of a function within a module's."""
    within = [const for const in code.co_consts if isinstance(const, CodeType)]
    for one in within:
        if one.co_qualname == function:
            return one
    return next(_code_of(one, function) for one in within if function.startswith(f"{one.co_qualname}."))
