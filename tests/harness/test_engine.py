"""Where a run is to be played, said in one word, and what is said when there is no Ray."""

import socket
import sys

import pytest

from harness import engine
from harness.cluster import shares
from harness.engine import ClusterError


@pytest.mark.parametrize(
    ("on", "address"),
    [("ray", "local"), ("ray://10.0.0.5:6379", "10.0.0.5:6379"), ("ray://auto", "auto"), ("auto", "auto")],
)
def test_one_word_says_where(on: str, address: str) -> None:
    assert engine.address(on) == address


@pytest.mark.parametrize("on", ["", "here", "ray://", "http://10.0.0.5:6379", "ray:6379"])
def test_any_other_word_is_refused_with_those_there_are(on: str) -> None:
    with pytest.raises(ValueError, match=r"Cure: ray \(this machine\)"):
        engine.address(on)


def test_a_missing_extra_is_refused_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match=r"make ray, or pip install -e '.\[ray\]'"):
        engine.join("auto", None, print)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("somewhere", "no HOST:PORT"),
        ("10.0.0.5:10001", "port of Ray Client"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
    ],
)
def test_an_address_that_cannot_be_a_cluster_is_refused_at_once(address: str, says: str) -> None:
    pytest.importorskip("ray", reason="needs the ray extra (make test-ray)")
    with pytest.raises(ClusterError, match=says):
        engine.join(address, None, print)


def test_a_port_where_nobody_listens_is_refused_at_once() -> None:
    pytest.importorskip("ray", reason="needs the ray extra (make test-ray)")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ClusterError, match="no Ray cluster answers"):
            engine.join(f"127.0.0.1:{taken.getsockname()[1]}", None, print)


def test_a_share_of_a_limit_is_even_and_never_nothing() -> None:
    assert shares(None, 3, "calls") == [None, None, None]
    assert shares(7, 3, "calls") == [3, 2, 2]
    with pytest.raises(ValueError, match="--worlds 2 cannot be divided among 3 workers"):
        shares(2, 3, "worlds")


def test_a_reason_is_one_line() -> None:
    assert engine.reason(ValueError("first\n\n  at x\nlast")) == "ValueError: first last"
    assert engine.reason(ValueError("")) == "ValueError"
