"""Of a leased folder everything is removed, and nothing outside of it, whatever lies in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_lease import folder_of, only, write

from envs.leftovers import sweep
from envs.removal import remove_folders


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "leases"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder that must survive, with a file."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("text")
    return folder


def test_links_to_the_outside_are_removed_and_what_they_point_to_stays(state: Path, precious: Path) -> None:
    lease = write(state)
    inside = folder_of(lease) / "inside"
    (inside / "deep").mkdir()
    for place in (inside, inside / "deep"):
        (place / "to-folder").symlink_to(precious)
        (place / "to-file").symlink_to(precious / "file")
        (place / "hard").hardlink_to(precious / "file")
        (place / "loop").symlink_to(place)
    assert only(sweep(str(state))).state == "removed"
    assert not inside.parent.exists()
    assert (precious / "file").read_text() == "text"


def test_a_folder_inside_that_was_replaced_by_a_link_is_not_followed(state: Path, precious: Path) -> None:
    made = folder_of(write(state))
    (made / "inside").rmdir()
    (made / "inside").symlink_to(precious)
    assert only(sweep(str(state))).state == "removed"
    assert (precious / "file").exists()


def test_a_leased_folder_that_is_a_link_now_is_left_alone(state: Path, precious: Path) -> None:
    lease = write(state)
    made = folder_of(lease)
    (precious / "made-by-instar").write_text(lease.stem)
    made.rename(made.parent / "moved")
    made.symlink_to(precious)
    assert only(sweep(str(state))).state == "failed"
    assert (precious / "file").exists()
    assert lease.exists()


@pytest.mark.parametrize("marker", ["2-2-bb", ""])
def test_a_folder_with_files_and_without_our_marker_is_left_alone(state: Path, marker: str) -> None:
    made = folder_of(write(state), marker)
    found = only(sweep(str(state)))
    assert found.state == "failed"
    assert "made-by-instar" in found.why
    assert (made / "inside").exists()


def test_a_folder_of_another_name_is_left_alone(state: Path, precious: Path) -> None:
    (precious / "made-by-instar").write_text("1-1-aa")
    write(state, resource={"path": str(precious)})
    assert only(sweep(str(state))).state == "failed"
    assert (precious / "file").exists()


@pytest.mark.parametrize("marker", [None, ""])
def test_an_owner_killed_while_it_made_the_folder_leaves_nothing(state: Path, marker: str | None) -> None:
    made = state.parent / f"instar-{write(state).stem}"
    made.mkdir()
    if marker is not None:
        (made / "made-by-instar").write_text(marker)
    assert only(sweep(str(state))).state == "removed"
    assert not made.exists()


def test_a_folder_that_was_never_made_costs_only_its_lease(state: Path) -> None:
    lease = write(state)
    assert only(sweep(str(state))).state == "removed"
    assert not lease.exists()


def test_very_deep_and_oddly_named_folders_are_removed(state: Path) -> None:
    inside = folder_of(write(state)) / "inside"
    for name in (b"\xff\xfe", b"new\nline", b".up-1-1", b"-rf"):
        os.mkdir(os.fsencode(inside) + b"/" + name)
        open(os.fsencode(inside) + b"/" + name + b"/file", "w").close()
    os.mkfifo(inside / "pipe")
    here = os.open(inside, os.O_RDONLY)
    for _ in range(3000):  # deeper than any path can be written, or any recursion can go
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    assert only(sweep(str(state))).state == "removed"
    assert not inside.parent.exists()


def test_folders_that_forbid_everything_are_removed_by_their_owner(tmp_path: Path) -> None:
    """In another process, since root may do everything and must become somebody else first."""
    code = """
import os, sys
from pathlib import Path
from envs.removal import remove_folders
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
made = Path(sys.argv[1]) / "instar-1-1-aa"
(made / "inside" / "shut" / "deep").mkdir(parents=True)
(made / "made-by-instar").write_text("1-1-aa")
(made / "inside" / "shut" / "deep" / "file").touch()
for folder in (made / "inside" / "shut" / "deep", made / "inside" / "shut", made / "inside", made):
    folder.chmod(0)
print(remove_folders({"1-1-aa": {"path": str(made)}}), made.exists())
"""
    place = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        place.chmod(0o777)
        done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "{} False", done.stderr
    finally:
        place.rmdir()


def test_what_is_mounted_in_a_leased_folder_is_not_emptied(state: Path, precious: Path) -> None:
    lease = write(state)
    inside = folder_of(lease) / "inside"
    code = (
        "import subprocess,sys; from envs.leftovers import sweep\n"
        "subprocess.run(['mount', '--bind', *sys.argv[1:3]], check=True)\n"
        "print([found.why for found in sweep(sys.argv[3])])"
    )
    words = ["unshare", "--mount", sys.executable, "-c", code, str(precious), str(inside), str(state)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "mounted there" not in done.stdout and done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip().splitlines()[-1]}")
    assert f"Cure: umount {inside}" in done.stdout
    assert (precious / "file").exists()
    assert only(sweep(str(state))).state == "removed"


def test_several_that_remove_the_same_folder_at_once_all_succeed(state: Path) -> None:
    lease = write(state)
    inside = folder_of(lease) / "inside"
    for number in range(40):
        (inside / f"{number}" / "a" / "b").mkdir(parents=True)
        for other in range(10):
            (inside / f"{number}" / "a" / f"{other}").touch()
    resources = {lease.stem: {"path": str(inside.parent)}}
    code = (
        f"from envs.removal import remove_folders; import sys; sys.stdin.read(); print(remove_folders({resources!r}))"
    )
    cut = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for process in cut:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    assert [process.communicate()[0].strip() for process in cut] == ["{}"] * 4
    assert remove_folders(resources) == {}
    assert not inside.parent.exists()
