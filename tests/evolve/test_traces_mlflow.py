"""A run in a real MLflow store: its plan, figures and page read back; live, later, once however often it is logged."""

import asyncio
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import runs

from envs.registry import load
from evolve.export import export
from evolve.page import write
from evolve.report import read_report
from evolve.traces.trace import TraceFault
from evolve.tracking import MLflowTracker
from harness.agent import Agent
from harness.journal import Journal
from harness.models.scripted import ScriptedModel
from harness.runner import Job, Runner
from harness.starter import starter


class Store:
    """A tracking store in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        from mlflow import MlflowClient

        self.uri = f"sqlite:///{folder}/mlflow.db"
        self.client = MlflowClient(tracking_uri=self.uri)

    def runs(self) -> list[Any]:
        experiment = self.client.get_experiment_by_name("instar")
        return [] if experiment is None else list(self.client.search_runs([experiment.experiment_id]))

    def history(self, run: Any, name: str) -> list[tuple[int, float]]:
        return sorted((point.step, point.value) for point in self.client.get_metric_history(run.info.run_id, name))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with nothing in it, which MLflow takes seconds to make."""
    for name in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(name, reason="the extra mlflow is not installed: make test-traces")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # read when MLflow is imported
        Store(folder).runs()
    return folder / "mlflow.db"


@pytest.fixture
def store(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    shutil.copy(fresh, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.chdir(tmp_path)  # MLflow puts artifacts into mlruns/ here
    return Store(tmp_path)


def test_an_evolution_is_there_with_its_plan_its_figures_and_its_curves(store: Store, reflected: Path) -> None:
    write(reflected)
    export(reflected, "mlflow", endpoint=store.uri)
    (run,) = store.runs()
    data = read_report(reflected)
    assert data.outcome is not None
    assert (run.info.run_name, run.info.status) == ("reflected", "FINISHED")
    assert run.info.start_time == pytest.approx(data.started * 1000, abs=60_000)
    assert run.data.params["recipe"] == "reflect"
    assert run.data.params["settings.rounds"] == "2"
    assert run.data.params["benchmark.name"] == "household"
    got = run.data.metrics
    evolved, compared = data.outcome.evolved, data.outcome.comparison
    assert (got["exam/evolved/mean"], got["exam/evolved/low"], got["exam/evolved/high"]) == (
        evolved.mean, evolved.low, evolved.high,
    )  # fmt: skip
    assert (got["exam/control/mean"], got["exam/control/missing"]) == (data.outcome.control.mean, 0.0)
    assert (got["comparison/difference"], got["comparison/p_value"]) == (compared.difference, compared.p_value)
    assert got["cost/calls"] == data.spending.total.calls
    assert store.history(run, "round/evolved/mean") == [(one.number, one.evolved.mean) for one in data.rounds]
    files = {one.path for one in store.client.list_artifacts(run.info.run_id)}
    assert files == {"harness", "report.html"}
    inside = {one.path for one in store.client.list_artifacts(run.info.run_id, "harness")}
    assert "harness/harness.toml" in inside


def test_logging_a_run_again_makes_no_second_one_and_repeats_no_point(store: Store, played: Path) -> None:
    export(played, "mlflow", endpoint=store.uri)
    (first,) = store.runs()
    names = list(first.data.metrics)
    before = {name: store.history(first, name) for name in names}
    assert before["running/calls"][-1] == (6, first.data.metrics["cost/calls"])
    export(played, "mlflow", endpoint=store.uri)
    (again,) = store.runs()
    assert again.info.run_id == first.info.run_id
    assert {name: store.history(again, name) for name in names} == before


def test_a_gap_is_missing_and_an_unknown_price_is_no_price(store: Store, tmp_path: Path) -> None:
    priceless = runs.call(usage=runs.Usage(prompt_tokens=3, output_tokens=1))
    run = runs.written(
        tmp_path / "run", [runs.trajectory("t0"), runs.gap("t1"), runs.trajectory("t2", turns=(runs.turn(priceless),))]
    )
    export(run, "mlflow", endpoint=store.uri)
    (logged,) = store.runs()
    got = logged.data.metrics
    assert (got["mean"], got["missing"], got["running/gaps"]) == (1.0, 1.0, 1.0)
    assert store.history(logged, "running/dollars") == [(1, 0.001), (2, 0.001)]
    assert "cost/dollars" not in got


def play(folder: Path, tracker: MLflowTracker) -> None:
    """A real runner that tells a tracker of each episode."""
    benchmark = load("household")
    agent = Agent.equip(starter("small"), ScriptedModel(lambda request: (request.choices or ("look",))[0]))
    with Journal(folder) as journal:
        journal.append("plan", runs.PLAN)
        runner = Runner(benchmark, journal, concurrency=3, on_episode=tracker)
        asyncio.run(runner.run([Job(agent, task) for task in benchmark.sample("valid", 5)], settle=False))


def test_the_runner_tells_it_of_each_episode_and_the_journal_adds_the_rest(store: Store, tmp_path: Path) -> None:
    with MLflowTracker(store.uri, name="live") as tracker:
        play(tmp_path / "run", tracker)
        tracker.log_run(tmp_path / "run")
    (run,) = store.runs()
    assert [step for step, _ in store.history(run, "running/calls")] == [1, 2, 3, 4, 5]
    assert run.data.metrics["running/calls"] == run.data.metrics["cost/calls"] > 0
    assert run.data.params["seed"] == "7"
    assert (run.info.run_name, run.info.status) == ("live", "FINISHED")
    export(tmp_path / "run", "mlflow", endpoint=store.uri)
    assert len(store.runs()) == 2  # the folder is called "run": another name is another MLflow run


def test_a_server_that_is_gone_does_not_end_a_run_and_is_an_error_at_the_end(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("evolve.tracking.TOGETHER", 1)
    tracker = MLflowTracker("http://user:hunter2@127.0.0.1:9", name="lost")
    with (
        caplog.at_level(logging.WARNING, "evolve.tracking"),
        pytest.raises(TraceFault, match="Cure: ") as gone,
        tracker,
    ):
        play(tmp_path / "run", tracker)
    assert len(runs.told(tmp_path / "run")) == 5
    said = [record.getMessage() for record in caplog.records if record.name == "evolve.tracking"]
    assert len(said) == 1
    assert "the run goes on" in said[0]
    assert "hunter2" not in said[0] + str(gone.value)


def test_what_did_not_arrive_at_first_arrives_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evolve.tracking.TOGETHER", 1)
    with MLflowTracker(store.uri, name="later") as tracker:
        real, tries = tracker._begun, []

        def failing(started: float) -> str:
            tries.append(started)
            if len(tries) <= 2:
                raise TraceFault("gone for now")
            return real(started)

        monkeypatch.setattr(tracker, "_begun", failing)
        for number in range(6):
            tracker(runs.trajectory(number=number))
    (run,) = store.runs()
    assert [step for step, _ in store.history(run, "running/tokens")] == [1, 2, 3, 4, 5, 6]
    assert len(tries) > 2


def test_a_run_that_fails_is_marked_as_failed_and_its_own_error_is_told(store: Store) -> None:
    def play() -> None:
        with MLflowTracker(store.uri) as tracker:
            tracker(runs.trajectory())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play()
    (run,) = store.runs()
    assert run.info.status == "FAILED"
    assert run.data.metrics["running/calls"] == 1


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(TraceFault, match=r"Cure: pip install -e '\.\[mlflow\]' in a checkout"):
        MLflowTracker()
