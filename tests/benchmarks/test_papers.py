"""The papers' figures as transcribed, the published systems' accounts, and the page that is made of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import bamboo_data
import bamboo_table2
import oobleck_data
import oobleck_models
import page
import pytest
import traces
from bamboo_models import RECONFIGURATION_7_PERCENT_S, Spot, bamboo, to_completion
from bamboo_system import Bamboo
from replay import Answer, Changes, Checkpoints, Mode, Node, Outcome, Replay, System, replay
from section import Comparison, Plot, Row, Section

from planaria.simulate.traces.trace import Change

NODES = [Node(f"n{at}", "abc"[at % 3]) for at in range(12)]


class Steady:
    """Trains at one speed; goes back to its checkpoint, or not, after each change."""

    name = "steady"

    def __init__(self, checkpoints: Checkpoints | None, *, rolls_back: bool) -> None:
        self.checkpoints = checkpoints
        self._rolls_back = rolls_back

    def start(self, nodes: Sequence[Node]) -> Mode | None:
        return Mode(step_s=10.0, samples=100.0)

    def change(self, changes: Changes) -> Answer:
        return Answer(mode=Mode(step_s=20.0, samples=100.0), pause_s=5.0, rolls_back=self._rolls_back)


def run(system: System, at_s: float, horizon_s: float) -> Outcome:
    return Replay(system).run(NODES, [Changes(at_s=at_s, lost=(NODES[0],))], horizon_s)


# The figures


@pytest.mark.parametrize("model", bamboo_data.TABLE_2)
def test_value_is_throughput_over_cost_in_bamboos_table_2(model: str) -> None:
    row = bamboo_data.TABLE_2[model]
    for throughput, cost, value in zip(row.throughput, row.cost, row.value, strict=True):
        assert value == pytest.approx(throughput / cost, abs=0.02)


def test_value_is_throughput_over_cost_in_bamboos_tables_3() -> None:
    for row in bamboo_data.TABLE_3A.values():
        assert row.value == pytest.approx(row.throughput / row.cost, abs=0.06)
        assert row.cost == pytest.approx(row.nodes * bamboo_data.SPOT_PER_HOUR, rel=0.02)
    for throughput, cost, value in bamboo_data.TABLE_3B.values():
        assert value == pytest.approx(throughput / cost, abs=0.01)


def test_oobleck_is_never_slower_where_losses_are_rarer() -> None:
    for system in oobleck_data.TABLE_2.values():
        for cells in system.values():
            assert list(cells) == sorted(cells, reverse=True)
    for row in oobleck_data.TABLE_3_S.values():
        assert list(row) == sorted(row)


# Published systems


def test_undisturbed_steps_count_and_a_step_goes_on_at_the_new_speed() -> None:
    outcome = run(Steady(None, rolls_back=False), at_s=25.0, horizon_s=50.0)
    # Two steps, half of the third; a pause of 5 s; 10 s for the rest of it; the fourth is done to a half.
    assert outcome.samples == 300.0
    assert outcome.seconds["restart"] == 5.0
    assert sum(outcome.seconds.values()) == pytest.approx(50.0)
    assert outcome.node_s == 12 * 25.0 + 11 * 25.0


def test_a_roll_back_loses_what_no_checkpoint_has() -> None:
    checkpoints = Checkpoints(write_s=2.0, every=2)
    outcome = run(Steady(checkpoints, rolls_back=True), at_s=37.0, horizon_s=38.0)
    # Steps 1 and 2, saved until 22 s; step 3 until 32 s and half of step 4 are lost.
    assert outcome.samples == 200.0
    assert outcome.seconds["redone"] == pytest.approx(15.0)
    assert outcome.seconds["checkpoint"] == pytest.approx(2.0)
    assert sum(outcome.seconds.values()) == pytest.approx(38.0)


def test_continuous_checkpoints_cover_what_was_done_when_the_last_whole_one_was_begun() -> None:
    outcome = run(Steady(Checkpoints(write_s=15.0), rolls_back=True), at_s=44.0, horizon_s=45.0)
    # Checkpoints begin at 0, 15 and 30 s; the one of 15 s was whole at 30 s, and has one step.
    assert outcome.samples == 100.0


def a_bamboo() -> Bamboo:
    return Bamboo(
        num_pipelines=2,
        depth=6,
        step_s=10.0,
        samples=100.0,
        recovery_s=1.0,
        reconfiguration_s=60.0,
        restart_s=300.0,
    )


def test_bamboo_survives_a_loss_by_a_shadow_and_two_neighbours_by_new_pipelines() -> None:
    system = a_bamboo()
    assert system.start(NODES) is not None
    first, *_ = system._pipelines
    assert first[2] is not None
    assert system.change(Changes(at_s=1.0, lost=(first[2],))).how == "shadow"
    assert first[3] is not None
    answer = system.change(Changes(at_s=2.0, lost=(first[3],)))
    assert answer.how == "reconfigure"
    assert answer.mode == Mode(step_s=20.0, samples=100.0)  # ten nodes make one pipeline


def test_bamboo_goes_back_to_a_checkpoint_where_a_stage_is_nowhere() -> None:
    system = a_bamboo()
    system.start(NODES)
    lost = tuple(node for pipeline in system._pipelines for node in pipeline[2:4] if node is not None)
    assert system.change(Changes(at_s=1.0, lost=lost)).how == "checkpoint"


def test_neighbours_of_a_bamboo_pipeline_are_of_different_zones() -> None:
    system = a_bamboo()
    system.start(NODES)
    for pipeline in system._pipelines:
        zones = [node.zone for node in pipeline if node is not None]
        assert all(left != right for left, right in itertools.pairwise(zones))


def test_varuna_saves_at_a_loss_only_where_it_is_warned() -> None:
    nodes = [Node(f"n{at}") for at in range(oobleck_data.NUM_NODES)]
    for notice_s, is_warned in ((0.0, False), (30.0, True)):
        system = oobleck_models.varuna("BERT-Large", 2, is_free=True, notice_s=notice_s)
        system.start(nodes)
        answer = system.change(Changes(at_s=1.0, lost=(nodes[0],)))
        assert (answer.saves, answer.rolls_back) == (is_warned, not is_warned)


@pytest.mark.parametrize("frequency", oobleck_data.FREQUENCIES_S)
def test_varuna_whose_checkpoints_cost_nothing_comes_near_its_paper(frequency: str) -> None:
    system = oobleck_models.varuna("BERT-Large", oobleck_data.CHECKPOINT_STEPS_FREE, is_free=True)
    ours = replay(system, oobleck_models.monotonic(frequency)).samples_per_s
    paper = dict(zip(oobleck_data.FREQUENCIES_S, oobleck_data.TABLE_4_FREE["BERT-Large"], strict=True))
    assert ours == pytest.approx(paper[frequency], rel=0.05)


def test_varuna_saves_before_it_takes_new_nodes_or_goes_back_for_them() -> None:
    nodes = [Node(f"n{at}") for at in range(oobleck_data.NUM_NODES)]
    for saves in (True, False):
        system = oobleck_models.varuna("BERT-Large", 10)
        system.saves_for_joins = saves
        system.start(nodes[1:])
        answer = system.change(Changes(at_s=1.0, joined=(nodes[0],)))
        assert (answer.saves, answer.rolls_back) == (saves, not saves)


@pytest.mark.parametrize("seed", range(5))
def test_nodes_of_made_up_traces_come_two_by_two_as_the_recorded_ones_do(seed: int) -> None:
    trace = traces.with_interval(30, 600.0, 12.0, "made up", seed=seed)
    came = [event.at_s for event in trace.events if event.change is Change.ADD and event.at_s > 0]
    assert len(came) / len(set(came)) == pytest.approx(1.9, abs=0.1)
    assert max(count for _, count in trace.counts()) <= 30


def test_varuna_with_the_best_interval_is_as_good_as_with_any() -> None:
    model, trace = "GPT-3 2.7b", oobleck_models.monotonic("10m")
    best = oobleck_models.best_varuna(model, trace)
    tried = [replay(oobleck_models.varuna(model, every), trace).samples for every in (1, 2, 4, 10, 30)]
    assert best.samples >= max(tried) > 0


def test_longer_reconfigurations_take_the_share_of_the_time_that_bamboos_paper_reports() -> None:
    for seconds, share in ((RECONFIGURATION_7_PERCENT_S, bamboo_data.RECONFIGURATION_SHARE), (60.0, 0.02)):
        found = [bamboo_table2.means(model, 0, seconds).restart_share for model in bamboo_data.MODELS]
        assert sum(found) / len(found) == pytest.approx(share, abs=0.01)


def test_spot_nodes_come_as_fast_as_gives_the_mean_of_the_paper() -> None:
    spot = Spot(wanted=48, hourly=0.24, mean_nodes=42.0)
    means = to_completion(lambda: bamboo("BERT"), spot, 1_000_000, 40.0, range(5))
    assert means.nodes == pytest.approx(42.0, rel=0.05)
    assert means.throughput < bamboo_data.MODELS["BERT"].demand
    # So many go in an hour, together.
    assert means.interval_h == pytest.approx(spot.mean_bulk / (0.24 * 42.0), rel=0.15)


# The page


def a_section(key: str, ours: float) -> Section:
    return Section(
        key=key,
        source="A paper, Table 1",
        title="what it shows",
        setting="How.",
        comparisons=[Comparison(title="samples/s", rows=[Row(what="a", paper=2.0, ours=ours)])],
        verdict="Why.",
        plots=[Plot(name="picture", caption="A picture", svg="<svg/>\n")],
    )


def test_a_section_that_is_made_again_replaces_its_own_text_alone(tmp_path: Path) -> None:
    target = tmp_path / "papers.md"
    page.write(target, [a_section("first", 1.0), a_section("second", 3.0)], ["first", "second"])
    page.write(target, [a_section("first", 4.0)], ["first", "second"])
    text = target.read_text()
    assert "| a | 2.00 | 4.00 | 2 |" in text
    assert "†" not in page.block(a_section("first", 1.0))
    assert "| a | 2.00 | 1.00 | 0.5 |" not in text
    assert "| a | 2.00 | 3.00 | 1.5 |" in text
    assert (tmp_path / "papers" / "picture.svg").read_text() == "<svg/>\n"


def test_a_quick_section_is_made_whole(tmp_path: Path) -> None:
    made = page.make_of("bamboo_table6")(None)
    page.write(tmp_path / "papers.md", [made])
    text = (tmp_path / "papers.md").read_text()
    assert "Bamboo, Table 6" in text
    published = page.PAGE.read_text()
    assert published.startswith(page.TITLE)
    kept = page.kept(published, "bamboo_table6")
    assert kept is not None
    assert kept.count("†") == text.count("†") - page.TITLE.count("†") == 6
    assert all(row.ours is not None for comparison in made.comparisons for row in comparison.rows)


def test_cells_to_which_something_was_fitted_are_marked() -> None:
    """Those of Table 2 and 4 that the speeds, pauses and storage of the models come from; the page as the scripts."""
    fitted = [
        oobleck_models.is_fitted(system, model, frequency)
        for system in ("Oobleck", "Varuna")
        for model in oobleck_data.TABLE_2["Oobleck"]
        for frequency in oobleck_data.FREQUENCIES_S
    ]
    assert (sum(fitted[:15]), sum(fitted[15:])) == (15, 2)
    row = Row(what="a", paper=1.0, ours=1.0, is_fitted=True)
    assert "| a † | 1.00 | 1.00 | 1 |" in Comparison(title="t", rows=[row]).markdown()
    published = page.PAGE.read_text()
    for name, count in (("oobleck_table2", 19), ("oobleck_table4", 12), ("bamboo_table2", 18), ("bamboo_table3a", 30)):
        kept = page.kept(published, name)
        assert kept is not None
        assert kept.count(" † |") == count


def test_every_section_has_its_script() -> None:
    folder = Path(page.__file__).parent
    assert all((folder / f"{name}.py").exists() for name in page.SECTIONS)
