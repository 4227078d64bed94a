"""A run beside the others in MLflow: its plan as parameters, its figures as metrics, its report as an artifact.

The tracker works after the run, from the journal alone, and during it, as the runner's `on_episode`. A tracking server
that is slow or gone must neither hold up nor end a run that costs money: points are sent from a thread of their own;
what could not be sent waits, is said once, and is an error only at the end. Logging a run again goes into the same
MLflow run and repeats no point of a curve.
"""

import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evolve.report import ReportData, read_report
from evolve.stats import Mean
from evolve.traces.trace import TraceFault, run_id
from harness.secrecy import mask
from harness.trajectory import Trajectory

log = logging.getLogger("evolve.tracking")

EXPERIMENT = "instar"
RUN, FOLDER = "instar.run", "instar.folder"  # tags by which a run is found again
TOGETHER, PATIENCE = 100, 5.0  # points, and seconds, after which points are sent
LONGEST = 500  # characters of a parameter
_LARGE = ("files", "tasks")  # parts of a plan that are no parameters; the files become artifacts
_NAME = re.compile(r"[^\w./ :-]")
#: A metric's name, value, step and time in Unix seconds.
Point = tuple[str, float, int, float]


class MLflowTracker:
    """Logs to `uri` (None: MLflow's own default, MLFLOW_TRACKING_URI); call it with each trajectory that ends.

    `name` is the MLflow run's; `plan` what the run is, where it is known from the start. Raises TraceFault.
    """

    def __init__(
        self, uri: str | None = None, *, experiment: str = EXPERIMENT, name: str | None = None,
        plan: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        try:
            import mlflow
        except ImportError as error:
            raise TraceFault(
                f"tracking needs MLflow ({error}). Cure: pip install -e '.[mlflow]' in a checkout"
            ) from None
        self.address = _shown(uri or mlflow.get_tracking_uri())
        with self._asking():
            self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self._experiment, self._name, self._plan = experiment, name, plan
        self._run: str | None = None
        self._tags: dict[str, str] = {}
        self._known: dict[str, set[tuple[int, float]]] = {}  # points that an earlier logging left, by metric
        self._again = False
        self._points: list[Point] = []  # those that wait
        self._underway: list[Point] = []
        self._sending: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1, "mlflow")
        self._sent = time.monotonic()
        self._warned = False
        self._ended: int | None = None  # milliseconds; None: now
        self._scores: dict[str, tuple[int, float]] = {}  # how many, and their sum, by phase and arm
        self._totals: dict[str, float] = defaultdict(float)
        self._priced = True
        self._episodes = 0

    def __call__(self, trajectory: Trajectory) -> None:
        """Count a trajectory that ended: running means by phase and arm, gaps, calls, tokens and money."""
        t = trajectory
        at = t.started + t.seconds
        told = {"gaps": t.status == "gap", "calls": t.calls, "tokens": t.tokens, "seconds": t.seconds}
        if t.dollars is None:
            self._priced = False  # unknown is not free: the sum ends here
        elif self._priced:
            told["dollars"] = t.dollars
        self._episodes += 1
        for name, value in told.items():
            self._totals[name] += value
            self._points.append((f"running/{name}", self._totals[name], self._episodes, at))
        if t.score is not None:
            arm = t.id.rpartition(f"/{t.task}/")[0] or t.arm or "agent"
            count, total = self._scores.get(arm, (0, 0.0))
            self._scores[arm] = count, total = count + 1, total + t.score
            self._points.append((f"running/{arm}/mean", total / count, count, at))
        due = len(self._points) >= TOGETHER or time.monotonic() - self._sent > PATIENCE
        if due and (self._sending is None or self._sending.done()):
            self._settle()
            self._underway, self._points = self._points, []
            self._sending, self._sent = self._pool.submit(self._log, self._underway), time.monotonic()

    def log_run(self, folder: str | Path) -> None:
        """Log what the journal in `folder` says: plan, means with intervals, gaps, cost, curves, harness, page."""
        data = read_report(folder)
        self._settle()
        self._plan = data.plan
        self._name = self._name or Path(folder).resolve().name
        run = self._begun(data.started)
        self._params(run, data.plan)
        at = data.ended or time.time()
        self._points += [(name, value, step, at) for name, value, step in _figures(data)]
        self._flush()
        for path, text in data.plan.get("files", {}).items():
            with self._asking():
                self._client.log_text(run, text, f"harness/{path}")
        if (page := Path(folder) / "report.html").is_file():
            with self._asking():
                self._client.log_artifact(run, str(page))
        self._ended = int(at * 1000)

    def close(self, status: str = "FINISHED") -> None:
        """Send what waits, and end the MLflow run. Idempotent."""
        try:
            self._settle()
            self._flush()
            if self._run is not None:
                with self._asking():
                    self._client.set_terminated(self._run, status, self._ended)
                self._run = None
        finally:
            self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        except TraceFault as fault:  # what went wrong first is what must be told
            error.add_note(str(fault))

    def _begun(self, started: float) -> str:
        """The MLflow run: the one that this run was logged to before, else a new one."""
        tags = {RUN: run_id(self._plan), FOLDER: self._name or ""} if self._plan is not None else {}
        if self._run is not None and tags == self._tags:
            return self._run
        with self._asking():
            if self._run is None:
                experiment = self._find_experiment()
                self._run = self._find_run(experiment, tags)
                self._again = self._run is not None
                if self._run is None:
                    made = self._client.create_run(experiment, int(started * 1000), tags, self._name)
                    self._run = str(made.info.run_id)
            for tag, value in tags.items():
                self._client.set_tag(self._run, tag, value)
        self._tags = tags
        return self._run

    def _find_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return str(found.experiment_id if found is not None else self._client.create_experiment(self._experiment))

    def _find_run(self, experiment: str, tags: dict[str, str]) -> str | None:
        if not tags:
            return None
        wanted = " and ".join(f"tags.`{tag}` = '{value.replace(chr(39), '')}'" for tag, value in tags.items())
        found = self._client.search_runs([experiment], wanted, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _params(self, run: str, plan: dict[str, Any]) -> None:
        from mlflow.entities import Param

        flat = {key: text for key, text in _flat(plan) if key.split(".")[0] not in _LARGE}
        with self._asking():
            had = self._client.get_run(run).data.params
            new = [Param(_NAME.sub("_", key), text) for key, text in flat.items() if _NAME.sub("_", key) not in had]
            for first in range(0, len(new), 100):
                self._client.log_batch(run, params=new[first : first + 100])

    def _settle(self) -> None:
        """Wait for what is on its way; what did not arrive waits again."""
        sending, self._sending = self._sending, None
        try:
            if sending is not None:
                sending.result()
        except TraceFault as fault:
            self._points[:0] = self._underway
            if not self._warned:
                log.warning("%s; the run goes on, and what was not sent waits", fault)
            self._warned = True

    def _flush(self) -> None:
        """Send all that waits, now."""
        if self._points:
            self._log(self._points)
            self._points = []

    def _log(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        run = self._begun(points[0][3])
        with self._asking():
            fresh = [
                Metric(_NAME.sub("_", name), value, int(at * 1000), step)
                for name, value, step, at in points
                if math.isfinite(value) and self._is_new(run, _NAME.sub("_", name), step, value)
            ]
            for first in range(0, len(fresh), 1000):
                self._client.log_batch(run, metrics=fresh[first : first + 1000])

    def _is_new(self, run: str, name: str, step: int, value: float) -> bool:
        """Whether an earlier logging has not left this point already."""
        if not self._again:
            return True
        if name not in self._known:
            history = self._client.get_metric_history(run, name)
            self._known[name] = {(metric.step, metric.value) for metric in history}
        return (step, value) not in self._known[name]

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """What MLflow or the way to it broke is a TraceFault, without any password."""
        import requests
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, requests.RequestException, OSError) as error:
            raise TraceFault(
                f"{self.address}: MLflow did not take it: {mask(_shown(str(error)))[:500]}. Cure: see that the server "
                "runs, or name another store, such as sqlite:///mlflow.db, then log the run again"
            ) from None


def _figures(data: ReportData) -> Iterator[tuple[str, float, int]]:
    """All figures of a run: (name, value, step)."""
    if data.evaluation is not None:
        yield from _mean("", data.evaluation)
    for arm, mean in data.exam.items():
        yield from _mean(f"exam/{arm}/", mean)
    for one in data.rounds:
        for arm, played in (("evolved", one.evolved), ("control", one.control)):
            if played is not None:
                yield from _mean(f"round/{arm}/", played, one.number)
    if data.outcome is not None:
        told = data.outcome.comparison
        for name in ("difference", "low", "high", "p_value", "pairs", "wins", "losses", "ties", "missing"):
            if (value := getattr(told, name)) is not None:
                yield f"comparison/{name}", float(value), 0
    if data.solved is not None:
        yield "solved", float(data.solved), 0
    total = data.spending.total
    for name in ("calls", "cached", "tokens", "dollars", "seconds", "paid_tokens", "paid_dollars"):
        if (value := getattr(total, name)) is not None:
            yield f"cost/{name}", float(value), 0


def _mean(prefix: str, mean: Mean, step: int = 0) -> Iterator[tuple[str, float, int]]:
    for name in ("mean", "low", "high", "worst", "best", "missing", "episodes", "tasks"):
        if (value := getattr(mean, name)) is not None:
            yield f"{prefix}{name}", float(value), step


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as `a.b`: text, cut where MLflow would refuse it; what is not set is left out."""
    if value is None or value == {}:
        return
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name}.{key}" if name else str(key))
        return
    text = str(value)
    yield name, text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _shown(address: str) -> str:
    """An address without the password that it may carry."""
    return re.sub(r"(\w://)[^/@\s]*@", r"\1", address)
